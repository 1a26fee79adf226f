"""A name for a socket in a folder however deep: the system takes 107 bytes of a path, and folders may be longer."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def name_of(place: Path) -> Iterator[str]:
    """Yield what to bind or to connect to for a socket at `place`. Raises `OSError` if its folder cannot be opened."""
    folder = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)
