"""The servers of benchmarks: starts them, pins them to cores, and measures their processes."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from latebind.child import Child, started


@contextmanager
def serving(repository: Path, *options: str, cores: Sequence[int] = (), log: Path | None = None) -> Iterator[str]:
    """Serve `repository` on a free port with these options of `latebind serve`; yields the URL.

    `log` takes what the server prints on standard error; `cores` are those of the frontend.
    """
    with launched(repository, *options, cores=cores, log=log) as server:
        yield server.url


@contextmanager
def launched(repository: Path, *options: str, cores: Sequence[int] = (), log: Path | None = None) -> Iterator[Child]:
    """Do what `serving` does, but yield the process as well, which may have ended when the block ends."""
    with (log or Path(os.devnull)).open("a+") as errors:
        words = (str(repository), "--port", "0", *options)
        with started(words, log=errors if log else None, cores=cores) as server:
            yield server


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Pin this process to `cores` inside the block, so that a client takes no time from the engine's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def tree(process: int) -> list[psutil.Process]:
    """Return a process and all its descendants."""
    first = psutil.Process(process)
    return [first, *first.children(recursive=True)]


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process and all its descendants have taken so far."""
    times = [one.cpu_times() for one in tree(process)]
    return float(sum(one.user + one.system for one in times))


@dataclass(frozen=True, slots=True)
class Resident:
    """Bytes in memory: what is private to the process, and that with its part of shared pages (PSS)."""

    private: int
    whole: int

    def __str__(self) -> str:
        return f"{self.private / 1e6:.0f}, {self.whole / 1e6:.0f}"  # MB


def resident(process: int | None = None) -> Resident:
    """Return the memory of a process, or of this one."""
    lines = Path(f"/proc/{process or 'self'}/smaps_rollup").read_text().splitlines()[1:]
    found = {name: int(rest.split()[0]) * 1024 for name, rest in (line.split(":") for line in lines)}
    return Resident(found["Private_Clean"] + found["Private_Dirty"], found["Pss"])
