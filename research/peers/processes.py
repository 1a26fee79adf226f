"""Servers as processes: starts them, waits until they are ready, reads their CPU time, ends them."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import psutil

from latebind.bench.server import cpu_seconds, tree
from latebind.domain.errors import ConfigError

START_SECONDS = 240.0
STOP_SECONDS = 20.0
PAUSE = 0.05
IDLE_SECONDS = 1.0
RESTLESS = 0.05  # of a core


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


@contextmanager
def running(
    command: Sequence[str], *, http: int, ready: str, log: Path, grpc: int | None = None, more: Mapping[str, str] = {}
) -> Iterator[Served]:
    """Run a server until the block ends, and begin the block once it answers GET `ready` with 200.

    Raises `ConfigError` where it ends before. `more` is put into its environment; what it prints goes to `log`.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            env={**os.environ, **more},
            process_group=0,  # Ctrl-C is for this process, which ends the others
        )
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


def restless(servers: Iterable[Served]) -> list[Served]:
    """Return the servers that take processor time while nobody calls them, measured for `IDLE_SECONDS`."""
    every = list(servers)
    before = [cpu_seconds(served.process) for served in every]
    time.sleep(IDLE_SECONDS)
    return [
        served
        for served, then in zip(every, before, strict=True)
        if cpu_seconds(served.process) - then > RESTLESS * IDLE_SECONDS
    ]


@contextmanager
def turn_of(served: Served, polling: Iterable[Served]) -> Iterator[None]:
    """Stop the processes of all other servers that poll until the block ends.

    LitServe takes one and a half cores while nobody calls it, so its peers would be measured on what it leaves. Servers
    that do not poll run on: Triton's Python backend does not recover from being stopped.
    """
    processes = [one for other in polling if other is not served for one in tree(other.process)]
    try:
        _tell(processes, psutil.Process.suspend)
        _tell(processes, _await_stopped)
        yield
    finally:
        _tell(processes, psutil.Process.resume)


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


def _tell(processes: Iterable[psutil.Process], what: Callable[[psutil.Process], None]) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):  # some live for a moment only
            what(one)


def _await_stopped(process: psutil.Process) -> None:
    # A signal acts only once its process has a core.
    until = time.monotonic() + STOP_SECONDS
    while process.status() not in {psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE}:
        if time.monotonic() > until:
            raise ConfigError(f"process {process.pid} does not stop; end what else runs on this machine")
        time.sleep(PAUSE / 10)


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
