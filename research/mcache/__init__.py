"""Measures what sharing memory between models costs and saves: mCache (Mo et al. 2025), and the distance to a bound."""
