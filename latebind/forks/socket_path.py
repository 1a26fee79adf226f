"""A short name for a socket at a long path: the system limits socket paths to 107 bytes."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def short_path(place: Path) -> Iterator[str]:
    """Yield a name to bind or connect a socket at `place`. Raises `OSError` if its folder cannot be opened."""
    folder = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)
