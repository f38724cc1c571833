"""Whole questions, a folder each with study, tables and page: what-if, serving, live runs, profiles of devices."""
