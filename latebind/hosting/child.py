"""`latebind serve` as a child process."""

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import IO

from latebind.cli.serve import READY
from latebind.domain.errors import ConfigError, Unavailable

END_SECONDS = 45.0  # longer than the server needs to finish its requests

__all__ = ["READY", "Child", "start"]


class Child:
    """A server that is ready, at `url`."""

    def __init__(self, process: subprocess.Popen[str], url: str, log: IO[str]) -> None:
        self._process = process
        self._log = log
        self.url = url

    def wait(self) -> None:
        """Return when it has ended because it was told to. Raises `Unavailable` if it ended in another way."""
        self._process.wait()
        self.check()

    def check(self) -> None:
        """Raise `Unavailable` if it has ended though nobody told it to."""
        status = self._process.poll()
        if status:
            said = _last_words(self._log)
            raise Unavailable(f"`latebind serve` ended with {_cause(status)}: {said}; start it again")


@contextmanager
def start(words: Sequence[str], *, quiet: bool) -> Iterator[Child]:
    """Run `latebind serve` with these arguments within the context, which is entered when the server is ready.

    If `quiet`, its log is only used for errors. Raises `ConfigError` with its last line if it does not start, and
    `Unavailable` at the end of a context that it did not outlive.
    """
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "latebind", "serve", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log if quiet else None,
            text=True,
            process_group=0,  # an interrupt from the terminal reaches only the parent, which passes it on once
        )
        try:
            child = Child(process, _url(process, log), log)
            yield child
            child.check()
        finally:
            _end(process)


def _url(process: subprocess.Popen[str], log: IO[str]) -> str:
    """Wait until the server is ready and return its URL."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    status = process.wait()
    raise ConfigError(f"`latebind serve` ended with status {status}: {_last_words(log)}")


def _last_words(log: IO[str]) -> str:
    """Return the last line that it has written."""
    log.seek(0)
    said = [text for line in log.readlines() if (text := line.strip(" │╭╮╰╯─\n"))]
    return said[-1] if said else "its words are above"


def _cause(status: int) -> str:
    """Return what a process ended with: the signal that killed it, or its status."""
    return f"signal {-status} ({signal.strsignal(-status)})" if status < 0 else f"status {status}"


def _end(process: subprocess.Popen[str]) -> None:
    """Terminate the server: it finishes its requests and ends."""
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()
