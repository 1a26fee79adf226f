"""The frontend: what clients see of latebind. It translates, decides nothing, and reaches the engine by a `Gateway`."""
