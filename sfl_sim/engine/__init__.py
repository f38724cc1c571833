"""One trial (a variant with a seed): build, walk its rounds, evaluate, checkpoint; many trials side by side."""
