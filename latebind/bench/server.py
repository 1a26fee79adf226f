"""Starts `latebind serve` in a process of its own for a benchmark and stops it again."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from latebind.cli.serve import GRPC_READY, READY
from latebind.domain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that answers: its process, its URL, and where it speaks gRPC, as 127.0.0.1:8001, if it does."""

    process: subprocess.Popen[str]
    url: str
    grpc: str | None = None


@contextmanager
def serving(repository: Path, *options: str, cores: Sequence[int] = (), log: Path | None = None) -> Iterator[str]:
    """Serve `repository` on a free port with these options of `latebind serve`; yields the URL.

    `cores` are those of the frontend; the engine takes its own by `--cores`. `log` takes what the server prints on
    standard error, which else goes where ours goes.
    """
    with launched(repository, *options, cores=cores, log=log) as server:
        yield server.url


@contextmanager
def launched(repository: Path, *options: str, cores: Sequence[int] = (), log: Path | None = None) -> Iterator[Launched]:
    """Do what `serving` does, but yield the process as well, which may have ended when the block ends."""
    command = [sys.executable, "-m", "latebind", "serve", str(repository), "--port", "0", *options]
    with (log or Path(os.devnull)).open("ab") as errors:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors if log else None,
            text=True,
            process_group=0,  # Ctrl-C is for this process, which ends the others
        )
        if cores:
            os.sched_setaffinity(process.pid, cores)
        try:
            yield Launched(process, *_addresses(process, log))
        finally:
            process.terminate()
            process.wait(timeout=30)


@contextmanager
def pinned(cores: Sequence[int]) -> Iterator[None]:
    """Pin this process to `cores` inside the block, so that a client takes nothing from the engine's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _addresses(process: subprocess.Popen[str], log: Path | None) -> tuple[str, str | None]:
    """Wait until a server says where it serves; returns its URL, and the address for gRPC if there is one."""
    assert process.stdout is not None
    grpc = None
    for line in process.stdout:
        if line.startswith(GRPC_READY):
            grpc = line.removeprefix(GRPC_READY).strip()
        if line.startswith(READY):
            return line.removeprefix(READY).strip(), grpc
    raise ConfigError(
        f"the server ended with status {process.wait()} before it was ready: see {log or 'its messages above'}"
    )


def tree(process: int) -> list[psutil.Process]:
    """Return a process and all that come from it."""
    first = psutil.Process(process)
    return [first, *first.children(recursive=True)]


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process and all that come from it have taken so far."""
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
