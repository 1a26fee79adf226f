"""Which worker runs which model: one number per worker, in shared memory that outlives an engine that dies.

0 means idle; the model at index i of the order is i + 1. While models are being loaded, the first place says which one.
A worker writes its own place before and after each stage. There is no lock: each place has one writer.
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
    """Size the file `fd` for so many workers and return their places in it."""
    os.ftruncate(fd, ITEM_BYTES * workers)
    places: Running = memoryview(mmap.mmap(fd, ITEM_BYTES * workers)).cast("I")  # type: ignore[assignment]
    return places


def read_running(fd: int) -> tuple[int, ...]:
    """Return the indices of the models that run, each once, ascending."""
    places = memoryview(os.pread(fd, MOST_BYTES, 0)).cast("I")
    return tuple(sorted({number - 1 for number in places if number != IDLE}))


def marking_loading(paths: Iterable[Path], running: Running) -> Iterator[Path]:
    """Yield each path; until the next one is asked for, the first place says that this model is being loaded."""
    for number, path in enumerate(paths):
        running[0] = number + 1
        yield path
    running[0] = IDLE
