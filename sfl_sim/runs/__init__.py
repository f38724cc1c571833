"""Trials with their folders, side by side, and what is told of them."""
