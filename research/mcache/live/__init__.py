"""Live engines with more models than memory holds: a trace, a crowd of clients, cold starts, and leaks."""
