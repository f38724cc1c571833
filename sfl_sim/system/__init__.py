"""The physics of the world: devices, links, availability, power, topology."""
