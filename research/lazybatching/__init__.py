"""LazyBatching's evaluation: batching policies side by side, simulated on its accelerator (sections V and VI)."""
