"""What deciding late costs: the scheduler, boundaries between stages, many models, and a door under a flood."""
