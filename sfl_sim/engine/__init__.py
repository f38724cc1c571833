"""One trial: build the experiment, walk its rounds, evaluate, checkpoint; many of them side by side."""
