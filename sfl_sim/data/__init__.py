"""Data sets, how clients share them, and how a batch is prepared."""
