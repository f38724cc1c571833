"""Priced steps that train replicas, optimisers, and the executors that run steps."""
