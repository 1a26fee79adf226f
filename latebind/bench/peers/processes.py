"""Servers as processes: starts them, waits until they are ready, reads their CPU time, ends them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil

from latebind.domain.errors import ConfigError

START_SECONDS = 240.0
STOP_SECONDS = 20.0
PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Served:
    """A server that runs: where it listens, and its first process. Nothing where it does not speak a protocol."""

    process: int
    http: int
    grpc: int | None = None

    @property
    def url(self) -> str:
        """Where it listens for HTTP."""
        return f"http://127.0.0.1:{self.http}"


def free_port() -> int:
    """Return a port that nobody listens on at the moment."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


def tree(process: int) -> list[psutil.Process]:
    """Return a process and all that come from it."""
    first = psutil.Process(process)
    return [first, *first.children(recursive=True)]


def cpu_seconds(process: int) -> float:
    """Return the CPU time that a process and all that come from it have taken so far."""
    times = [one.cpu_times() for one in tree(process)]
    return float(sum(one.user + one.system for one in times))


@contextmanager
def running(
    command: Sequence[str], *, http: int, ready: str, log: Path, grpc: int | None = None, more: Mapping[str, str] = {}
) -> Iterator[Served]:
    """Run a server until the block ends, and begin the block once it answers GET `ready` with 200.

    Raises `ConfigError` where it ends before. `more` is put into its environment; what it prints goes to `log`.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **more})
        try:
            _await_ready(process, http, ready, log)
            yield Served(process.pid, http, grpc)
        finally:
            end(process)


@contextmanager
def latebind(repository: Path, options: Sequence[str], *, ready: str, log: Path, grpc: bool) -> Iterator[Served]:
    """Run `latebind serve` with these options until the block ends; it begins once the model `ready` is served."""
    http, calls = free_port(), free_port() if grpc else None
    command = [sys.executable, "-m", "latebind", "serve", str(repository), "--port", str(http)]
    if calls is not None:
        command += ["--grpc-port", str(calls)]
    with running([*command, *options], http=http, grpc=calls, ready=f"/v2/models/{ready}/ready", log=log) as served:
        yield served


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a server and whatever of it is left."""
    try:
        every = tree(process.pid)
    except psutil.NoSuchProcess:
        every = []
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for one in every:
        if one.is_running():
            one.kill()


def _await_ready(process: "subprocess.Popen[bytes]", port: int, path: str, log: Path) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise ConfigError(f"a server ended with status {process.returncode} before it was ready: see {log}")
        if _answers(port, path):
            return
        time.sleep(PAUSE)
    raise ConfigError(f"a server was not ready after {START_SECONDS:g} s: see {log}")


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
