"""How steps are really computed: at once, many as one, or not at all."""
