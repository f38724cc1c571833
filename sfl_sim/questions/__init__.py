"""What if: the rounds of a scenario by the clock alone, in many worlds and at many cuts."""
