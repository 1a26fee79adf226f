"""A virtual clock and costs in place of an engine: the same scheduler, the same actions. Pure."""
