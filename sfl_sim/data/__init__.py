"""Data sets, how they are dealt to clients, and mini-batches."""
