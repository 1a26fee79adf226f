"""Who runs what: a number for each worker, in memory that the door still has when the engine has died.

0 is nobody; model i, counted as the order names the directories, is i + 1. While models are loaded, the first place
tells which. A worker writes its own place before and after each stage, without a lock: nobody reads it meanwhile.
"""

import mmap
import os
from collections.abc import Iterable, Iterator, MutableSequence
from pathlib import Path

IDLE = 0
ITEM_BYTES = 4
MOST_BYTES = 1 << 16

Running = MutableSequence[int]


def map_running(fd: int, workers: int) -> Running:
    """Return the places of so many workers in the file `fd`, which is made large enough."""
    os.ftruncate(fd, ITEM_BYTES * workers)
    places: Running = memoryview(mmap.mmap(fd, ITEM_BYTES * workers)).cast("I")  # type: ignore[assignment]
    return places


def read_running(fd: int) -> tuple[int, ...]:
    """Return the models that run, each once, counted from 0."""
    places = memoryview(os.pread(fd, MOST_BYTES, 0)).cast("I")
    return tuple(sorted({number - 1 for number in places if number != IDLE}))


def telling(paths: Iterable[Path], running: Running) -> Iterator[Path]:
    """Yield each path, with its number in the first place until the next is asked for."""
    for number, path in enumerate(paths):
        running[0] = number + 1
        yield path
    running[0] = IDLE
