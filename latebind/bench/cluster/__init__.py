"""Simulated clusters: how fast the simulation is, and what placement and residency gain there."""
