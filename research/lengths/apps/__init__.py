"""Peers' applications, which run in environments of their own."""
