"""The door: what clients see of latebind. It translates and decides nothing; the engine behind it is a `Gateway`."""
