"""The simulated system: devices, links, availability, power, topology."""
