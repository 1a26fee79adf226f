"""Live engines side by side: the same rows at the same times for each, at the pace that the machine has."""
