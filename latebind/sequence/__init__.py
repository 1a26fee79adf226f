"""Sequence models: read an input of any length once, then write step by step until the answer is complete."""
