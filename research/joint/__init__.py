"""Exits, batching and deadlines together: policies compared on the same model, cores, loads and fidelity."""
