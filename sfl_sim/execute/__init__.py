"""How steps are really computed: at once, or not at all."""
