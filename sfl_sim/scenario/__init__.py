"""The scenario: typed, read from YAML, and refused in one line that says where and why."""
