"""What a process takes in memory, looked at from outside every tenth of a second. Linux.

What is cheap to read counts code among pages of files, too, and a network that runs for the first time has code read.
So where pages of files seem to be more than there may be, those of weights are counted one file after another. That
takes longer than a small model's load: it counts only if nothing came or went meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Self

INTERVAL = 0.1  # seconds
TRIES = 20
KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of a process that are in memory: all, and what of them are pages of files, as weights and code are."""

    all: int
    files: int


def taken(process: int) -> Taken:
    """Return the memory of a process now."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split() for line in lines if line.startswith(("VmRSS", "RssFile"))}
    return Taken(int(found["VmRSS"][1]) * KIB, int(found["RssFile"][1]) * KIB)


def mapped(process: int, folder: Path) -> int:
    """Return the bytes of files in a folder that a process has mapped and that are in memory."""
    found, inside = 0, False
    for line in Path(f"/proc/{process}/smaps").read_bytes().splitlines():
        if line[:1].islower() or line[:1].isdigit():  # an address: what follows is of another mapping
            inside = f" {folder}/".encode() in line
        elif inside and line.startswith(b"Rss:"):
            found += int(line.split()[1]) * KIB
    return found


@dataclass(frozen=True, slots=True)
class Growth:
    """By how many bytes a process was larger than with nothing loaded: all of it, and weights."""

    all: tuple[int, ...]
    weights: tuple[int, ...]


class Watch:
    """Looks at a process on a thread, for as long as `looking` lasts.

    `base` is what it takes with nothing loaded, `budget` the bytes that weights, files in `folder`, may take.
    """

    def __init__(self, process: int, base: Taken, *, budget: int, folder: Path) -> None:
        self._process = process
        self._base = base
        self._budget = budget
        self._folder = folder.resolve()
        self._all: list[int] = []
        self._weights: list[int] = []
        self._end = Event()

    @contextmanager
    def looking(self) -> Iterator[Self]:
        """Watch while the block lasts; yields this object."""
        thread = Thread(target=self._work, name="watch")
        thread.start()
        try:
            yield self
        finally:
            self._end.set()
            thread.join()

    @property
    def growth(self) -> Growth:
        """The growth seen so far."""
        return Growth(tuple(self._all), tuple(self._weights))

    def _work(self) -> None:
        """Root of the thread."""
        while not self._end.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        seen = taken(self._process)
        self._all.append(seen.all - self._base.all)
        for _ in range(TRIES):
            files = seen.files - self._base.files
            if files <= self._budget:
                return self._weights.append(files)
            weights, before = mapped(self._process, self._folder), seen
            seen = taken(self._process)
            if seen.files == before.files:
                return self._weights.append(weights)
        return None
