"""Simulated latencies beside those of live engines: the same arrivals, with costs that were measured beside them."""
