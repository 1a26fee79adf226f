"""The engine: a process of its own that holds the scheduler and runs stages. `client` is its end in the frontend."""
