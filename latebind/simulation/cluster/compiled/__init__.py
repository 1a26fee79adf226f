"""The cluster simulation compiled: the rules of `exact.py` for millions of requests."""
