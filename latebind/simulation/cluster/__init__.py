"""Many machines at once: each with the scheduler and the memory of one, and a router before them."""
