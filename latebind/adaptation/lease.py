"""Which of several services leads, where they share a folder: one holds a lease, which another takes when it is gone.

A lease is a file `leader-N`, which its holder writes again and again. Who sees it unchanged for `PATIENCE` by his own
clock makes `leader-(N + 1)`, which only one can; so clocks of machines need not agree, and who was only slow finds out.
Where the holder was a process of the same machine, whoever sees that it has ended need not wait.
"""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

from latebind.repository.directory import write_bytes

EVERY = 2.0  # seconds between two beats, and between two looks at another's
PATIENCE = 10.0
LEADER = re.compile(r"leader-([0-9]{6,})")
FREE = b"free"
ELSEWHERE = "-"


def place() -> str:
    """Return what all processes have in common that can see each other here, as one word (Linux; else `ELSEWHERE`)."""
    try:
        started = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{started}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ELSEWHERE


class Lease:
    """One service's part in it. Call `beat` often, `release` at the end."""

    def __init__(self, folder: Path) -> None:
        self.leads = False
        self._folder = folder
        self._place = place()
        self._owner = f"{socket.gethostname()} {self._place} {os.getpid()} {token_hex(4)}"
        self._term = 0  # that this service leads, or led last
        self._beats = 0
        self._looked = float("-inf")
        self._seen: tuple[int, bytes] | None = None
        self._since = 0.0  # when that was first seen

    def beat(self, now: float) -> bool:
        """Tell whether this service leads, at `now` by any steady clock (seconds)."""
        if now - self._looked >= EVERY:
            self._looked = now
            term = max(self._terms(), default=0)
            self.leads = (self.leads and term == self._term) or (self._is_free(term, now) and self._take(term + 1))
            if self.leads:
                self._write(f"{self._owner} {self._beats}".encode())
        return self.leads

    def release(self) -> None:
        """Let the next one lead at once."""
        if self.leads and max(self._terms(), default=0) == self._term:
            self._write(FREE)
        self.leads = False

    def _is_free(self, term: int, now: float) -> bool:
        """Tell whether nobody leads: no term has begun, or its leader has left, or has written nothing for long."""
        try:
            written = self._path(term).read_bytes() if term else FREE
        except FileNotFoundError:  # somebody has just begun another
            return False
        if self._seen != (term, written):
            self._seen, self._since = (term, written), now
        return written == FREE or now - self._since >= PATIENCE or self._has_ended(written)

    def _has_ended(self, written: bytes) -> bool:
        """Tell whether who wrote this was a process that would be seen here if it were alive, and is not."""
        match written.decode("ascii", "replace").split():
            case [_, place, process, _, _] if place == self._place != ELSEWHERE and process.isdecimal():
                return not Path("/proc", process).exists()
        return False

    def _take(self, term: int) -> bool:
        """Begin a term, unless another was quicker."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(self._path(term), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            return False
        for old in self._terms():
            if old < term:
                self._path(old).unlink(missing_ok=True)
        self._term = term
        return True

    def _write(self, data: bytes) -> None:
        self._beats += 1
        write_bytes(self._path(self._term), data)

    def _terms(self) -> Iterator[int]:
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        return (int(found[1]) for found in map(LEADER.fullmatch, names) if found)

    def _path(self, term: int) -> Path:
        return self._folder / f"leader-{term:06d}"
