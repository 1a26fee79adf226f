"""Simulated clusters: what placement and residency gain there."""
