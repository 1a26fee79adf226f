"""How many machines some traffic needs: a search over simulated clusters, and what becomes of it if things change."""
