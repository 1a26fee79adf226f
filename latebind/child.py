"""`latebind serve` as a child process, for modules that are served from Python and for benchmarks."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from latebind.domain.errors import ConfigError, Unavailable

READY = "latebind serves at "  # what a server prints with its URL once requests are answered; scripts wait for it
GRPC_READY = "latebind serves gRPC at "  # the line before, if it does
END_SECONDS = 45.0  # longer than the server needs to finish its requests


@dataclass(frozen=True, slots=True)
class Child:
    """A running server: its process, its URL, its address for gRPC (such as 127.0.0.1:8001), and its log, if any."""

    process: subprocess.Popen[str]
    url: str
    grpc: str | None
    log: IO[str] | None

    def check(self) -> None:
        """Raise `Unavailable` if it has ended unasked."""
        if status := self.process.poll():
            cause = f"signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"status {status}"
            raise Unavailable(f"`latebind serve` ended with {cause}: {_last_words(self.log)}; start it again")


@contextmanager
def started(words: Sequence[str], *, log: IO[str] | None = None, cores: Sequence[int] = ()) -> Iterator[Child]:
    """Run `latebind serve` with these arguments within the context, which is entered when the server is ready.

    Its standard error goes to `log`, else to that of this process. `cores` are those of the frontend; the engine gets
    its own by `--cores`. Raises `ConfigError` with the server's last line if it does not start.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", "latebind", "serve", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        process_group=0,  # an interrupt from the terminal reaches only the parent, which passes it on once
    )
    assert process.stdout is not None
    try:
        if cores:
            os.sched_setaffinity(process.pid, cores)
        grpc = None
        for line in process.stdout:
            if line.startswith(GRPC_READY):
                grpc = line.removeprefix(GRPC_READY).strip()
            if line.startswith(READY):
                break
        else:
            raise ConfigError(f"`latebind serve` ended with status {process.wait()}: {_last_words(log)}")
        yield Child(process, line.removeprefix(READY).strip(), grpc, log)
    finally:
        process.terminate()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


def _last_words(log: IO[str] | None) -> str:
    if log is None:
        return "see its output above"
    log.seek(0)
    lines = [text for line in log.readlines() if (text := line.strip(" │╭╮╰╯─\n"))]
    return lines[-1] if lines else "it printed nothing"
