"""Everything at once: a real server, every kind of client, and whatever can happen to it meanwhile."""
