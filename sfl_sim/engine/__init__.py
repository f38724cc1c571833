"""One trial (a variant with a seed): walk its rounds, evaluate, checkpoint."""
