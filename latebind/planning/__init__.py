"""How many machines a given traffic needs: a search over simulated clusters, and its sensitivity to changes."""
