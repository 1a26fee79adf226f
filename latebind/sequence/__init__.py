"""Sequence models: read an input of any length once, then write token by token until the answer is complete."""
