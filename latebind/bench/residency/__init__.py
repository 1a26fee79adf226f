"""What memory that models share costs and saves: mCache (Mo et al. 2025), and how far from the least that is."""
