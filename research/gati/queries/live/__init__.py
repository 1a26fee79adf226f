"""Queries on live engines: planners with and without learned caches, and what a query costs beyond its models."""
