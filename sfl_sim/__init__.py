"""sfl-sim."""
