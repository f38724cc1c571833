"""A fleet in use: which requests come, what answers them, and where. Without a clock, as methods are."""
