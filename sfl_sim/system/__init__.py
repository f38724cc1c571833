"""Physics of the world: how fast devices compute, how fast links move bits, and when clients are present."""
