"""Run folders and their columns.

While a run is under way its files lie in `<out>.partial`, one trial for every variant and seed; `join` makes of the
trials the tables that docs/output.md describes, and `publish` moves them. So a folder at `<out>` is always readable.
"""
