"""Forks processes that need torch from one that has imported it: importing takes longer than the rest of a start."""
