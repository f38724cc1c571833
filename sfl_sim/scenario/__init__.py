"""The scenario, which a user writes: YAML, schema, presets, which key matters to what, problems with their place."""
