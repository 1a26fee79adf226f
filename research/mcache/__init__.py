"""What sharing memory between models costs and saves: mCache (Mo et al. 2025), simulated and live."""
