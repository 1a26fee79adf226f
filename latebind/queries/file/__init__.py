"""Query files: read with their lines, checked against models, made into a graph and its wiring. Pure."""
