"""Processes that need torch, forked from one that has imported it, which takes longer than the rest of a start."""
