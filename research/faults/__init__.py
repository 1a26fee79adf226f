"""Faults on purpose: engines that die, servers that are told to end, models that change, clients that hang up."""
