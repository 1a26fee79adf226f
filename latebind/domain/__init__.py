"""The words that everyone shares: events, actions, costs, specifications, errors, configuration, metrics. Pure."""
