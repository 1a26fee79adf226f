"""The frontend: what clients see of latebind. It translates, decides nothing, and has the engine behind a `Gateway`."""
