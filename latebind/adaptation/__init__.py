"""Learned caches that follow the traffic, and a watch over their fidelity (GATI, section 5.3). Beside the engine."""
