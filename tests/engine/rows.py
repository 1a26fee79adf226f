"""Slots in shared memory for tests that have no engine's process."""

import os
from collections.abc import Mapping

from latebind.domain.model import ModelSpec
from latebind.engine.slots import SlotMemory, create_file, file_bytes


def memory_of(*specs: ModelSpec, rows: int | Mapping[str, int]) -> SlotMemory:
    """Map slots of these models: so many of each, or as many as `rows` says by name."""
    by_name = {spec.name: rows for spec in specs} if isinstance(rows, int) else rows
    fd = create_file()
    os.ftruncate(fd, file_bytes(specs, by_name))
    memory = SlotMemory(fd, specs, by_name)
    os.close(fd)
    return memory
