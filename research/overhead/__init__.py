"""What deciding late costs: the scheduler, boundaries between stages, and many models."""
