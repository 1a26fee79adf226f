"""Sequence models: read an input of any length once, then generate token by token until the answer is complete."""
