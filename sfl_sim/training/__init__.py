"""Replicas, the priced steps that train them, optimisers, and the executors that run the steps."""
