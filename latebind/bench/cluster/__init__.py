"""Simulated clusters: how fast they are simulated, and what placement and residency gain there."""
