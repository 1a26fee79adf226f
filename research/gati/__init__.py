"""GATI: learned caches, queries and adaptation, each beside its baselines."""
