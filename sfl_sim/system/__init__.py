"""The physics of the world: how fast the devices compute, how fast the links move bits."""
