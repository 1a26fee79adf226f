"""A model as a chain of stages: export, cut, join, compile to a backend, verify, profile, load. Uses torch."""
