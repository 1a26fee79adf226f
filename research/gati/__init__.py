"""GATI: learned caches beside their baselines, whether they follow the traffic and keep fidelity, and queries."""
