"""Pages made from stored tables; they compute no science."""
