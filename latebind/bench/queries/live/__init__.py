"""Queries on engines here: planners with and without learned caches, and what a query takes beyond its models."""
