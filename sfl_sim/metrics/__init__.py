"""Functions of stored records, computed after the run."""
