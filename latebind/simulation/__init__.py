"""A virtual clock and costs instead of an engine: the same scheduler, the same actions. Pure."""
