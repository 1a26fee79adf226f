"""Forks processes that need torch from one that has imported it: importing is the longest part of a start."""
