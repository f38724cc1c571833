"""Profiles of one's own devices: measured, fitted, converted."""
