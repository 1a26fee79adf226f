"""Starts `latebind serve` in a process of its own for a benchmark and stops it again."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from latebind.cli.serve import READY


@dataclass(frozen=True, slots=True)
class Launched:
    """A server that answers: its process and its URL."""

    process: subprocess.Popen[str]
    url: str


@contextmanager
def serving(repository: Path, *options: str, cores: Sequence[int] = (), log: Path | None = None) -> Iterator[str]:
    """Serve `repository` on a free port with these options of `latebind serve`; yields the URL.

    `cores` are those of the door; the engine takes its own by `--cores`. `log` takes what the server prints on
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
            yield Launched(process, _url(process))
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


def _url(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise RuntimeError(f"the server ended with status {process.wait()} before it was ready: see its messages above")
