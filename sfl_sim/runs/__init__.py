"""Trials with their folders, side by side, and the news of them."""
