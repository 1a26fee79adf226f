"""What a process takes in memory, looked at from outside every tenth of a second. Linux."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

INTERVAL = 0.1  # seconds
KIB = 1 << 10


@dataclass(frozen=True, slots=True)
class Taken:
    """Bytes of a process that are in memory: all, and what of them are pages of files, as weights are."""

    all: int
    files: int


def taken(process: int) -> Taken:
    """Return what a process takes now."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    found = {line.split(":")[0]: line.split() for line in lines if line.startswith(("VmRSS", "RssFile"))}
    return Taken(int(found["VmRSS"][1]) * KIB, int(found["RssFile"][1]) * KIB)


@dataclass(frozen=True, slots=True)
class Growth:
    """By how many bytes a process was larger than with nothing loaded: all of it, and its pages of files."""

    all: tuple[int, ...]
    files: tuple[int, ...]


class Watch:
    """Looks at a process on a thread while it is entered. `base` is what it takes with nothing loaded."""

    def __init__(self, process: int, base: Taken) -> None:
        self._process = process
        self._base = base
        self._seen: list[Taken] = []
        self._end = Event()
        self._thread = Thread(target=self._look, name="watch")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    @property
    def growth(self) -> Growth:
        """What was seen so far."""
        seen: Sequence[Taken] = tuple(self._seen)
        return Growth(
            tuple([one.all - self._base.all for one in seen]), tuple([one.files - self._base.files for one in seen])
        )

    def _look(self) -> None:
        """Root of the thread."""
        while not self._end.wait(INTERVAL):
            self._seen.append(taken(self._process))
