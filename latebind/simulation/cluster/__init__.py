"""Many machines at once: each with its own scheduler and memory, and a router in front of them."""
