"""Faults on purpose: engines that die or hang, servers that are told to end, models that change, clients that leave."""
