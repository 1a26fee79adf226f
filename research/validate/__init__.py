"""Compares simulated latencies with those of live engines: the same arrivals, with costs measured around them."""
