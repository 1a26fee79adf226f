"""Adapts learned caches to the traffic, beside the engine, and watches their fidelity (GATI, section 5.3)."""
