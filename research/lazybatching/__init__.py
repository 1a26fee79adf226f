"""LazyBatching: batches that change between stages, simulated on its accelerator and live, beside its baselines."""
