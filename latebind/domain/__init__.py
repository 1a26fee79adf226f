"""Shared types: events, actions, costs, specifications, errors, configuration, metrics. Pure."""
