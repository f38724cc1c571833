"""Whole questions, a folder each with study, page and command: what-if, serving, live runs, profiles of devices."""
