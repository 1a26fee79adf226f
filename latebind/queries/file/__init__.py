"""What stands in a query file: read with its lines, checked against models, made into a graph and its wiring. Pure."""
