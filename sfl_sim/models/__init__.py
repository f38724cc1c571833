"""Networks that can be cut after any layer, and the replicas of their parts."""
