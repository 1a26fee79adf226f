"""Which models, or pieces of models, are in memory. Pure."""
