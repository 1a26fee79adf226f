"""The client of the fork server: starts it, asks it for processes and learns when they end.

Processes of a machine share imports: a process that is `lending` lets its fork server fork that of another process,
which then need not import torch. The borrower sends the socket on which its fork server will serve. That server ends
with the borrower, not with the lender. Replicas get the lender's path as an argument, other processes find it in their
environment.
"""

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from threading import Lock, Thread
from typing import Self

import msgspec

from latebind.forks.process import MESSAGE_BYTES, Fork, ForkResult

KILL_SECONDS = 10.0  # that a killed process may take: it may be writing to a disk that does not answer
FORK_SECONDS, IMPORT_SECONDS = 60.0, 300.0  # to wait for a process, and for the first, while the server imports
LENT = b"lent"
BORROWED, NAME = "latebind.forks.process", "latebind-forks"
VARIABLE = "LATEBIND_LENDER"  # environment variable with the path of a lender
LEND_SECONDS = 30.0  # to wait for a lender, which may still be importing
ASK_SECONDS = 5.0  # that a borrower has to send its message


class Forked:
    """A forked process, which is not a child of this one."""

    def __init__(self, process: int, handle: int) -> None:
        self.pid, self._handle = process, handle

    def ended(self, seconds: float) -> bool:
        """Wait at most `seconds` for its end; return whether it has ended. Several threads may wait."""
        poll = select.poll()
        poll.register(self._handle, select.POLLIN)
        return bool(poll.poll(1000.0 * seconds))

    def end(self, patience: float) -> bool:
        """Wait for its end, and kill it after `patience` seconds; return whether it ended by itself.

        One that does not end even then is left behind.
        """
        if self.ended(patience):
            return True
        self.kill()
        self.ended(KILL_SECONDS)
        return False

    def kill(self) -> None:
        """Kill it, unless it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._handle)


class ForkServer:
    """Forks processes that have imported torch. Threads may share one; forked processes outlive `close`.

    The server's process starts with the first request, or with `warm`, and is started again if it has ended. If a
    lender (`lending`) serves at `lender`, it is forked from the lender's.
    """

    def __init__(self, lender: Path | None = None) -> None:
        self._lender = lender
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm(self) -> None:
        """Start the server's imports, so that the first process starts sooner; does not wait."""
        with self._lock:
            self._connected()

    def fork(
        self,
        module: str,
        words: Sequence[str],
        *,
        name: str,
        inherited: Sequence[int] = (),
        standard: tuple[int, int, int] | None = None,
        imports: Sequence[str] = (),
    ) -> Forked:
        """Fork a process that calls `main` of a module, with the numbers of the inherited descriptors, then `words`.

        Modules in `imports`, which must be installed, are imported first, once for all processes that follow.
        `standard` are its input, output and errors; by default it has no input and writes where this process does. The
        first call waits for the imports. Raises `OSError` if the machine has no room for a process.
        """
        with open(os.devnull, "rb") as nothing, self._lock:
            streams = standard or (nothing.fileno(), 1, 2)
            place, environment, cores = os.getcwd(), dict(os.environ), sorted(os.sched_getaffinity(0))
            fork = Fork(module, list(words), name, place, environment, cores, list(imports))
            message = msgspec.json.encode(fork)
            try:
                return self._ask(message, [*streams, *inherited])
            except ConnectionError:  # it was idle for too long, or was killed
                self._disconnect()
                return self._ask(message, [*streams, *inherited])

    async def forked(
        self, module: str, words: Sequence[str], *, name: str, inherited: Sequence[int], imports: Sequence[str] = ()
    ) -> Forked:
        """Do what `fork` does, on a thread. If cancelled, return only when `inherited` is no longer used."""
        fork = partial(self.fork, module, words, name=name, inherited=inherited, imports=imports)
        forking = asyncio.ensure_future(asyncio.to_thread(fork))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            await asyncio.wait({forking})
            raise

    def close(self) -> None:
        """End the server's process, but not the processes that it has forked."""
        with self._lock:
            self._disconnect()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(IMPORT_SECONDS)
            with theirs:
                self._process = None if _borrowed(self._lender, theirs) else _started(theirs)
        return self._socket

    def _ask(self, message: bytes, descriptors: Sequence[int]) -> Forked:
        connected = self._connected()
        try:
            socket.send_fds(connected, [message], descriptors)
            answer, handles, _, _ = socket.recv_fds(connected, MESSAGE_BYTES, 1)
        except TimeoutError:
            self._disconnect()  # its late answer would be taken for that to a later request
            raise
        if not answer:
            raise ConnectionResetError(errno.ECONNRESET, "the fork server has ended; its last words are in the log")
        connected.settimeout(FORK_SECONDS)
        result = msgspec.json.decode(answer, type=ForkResult)
        if result.error is not None:
            raise OSError(result.error, os.strerror(result.error))
        if not handles:  # this process may open no more files
            with suppress(ProcessLookupError):
                os.kill(result.process, signal.SIGKILL)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Forked(result.process, handles[0])

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()  # it may still be importing
            self._process.wait()
        self._socket = self._process = None


def _borrowed(lender: Path | None, theirs: socket.socket) -> bool:
    """Let the lender fork a fork server that serves the other end of this socket; False if there is no lender."""
    if lender is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(LEND_SECONDS)
        try:
            with _short_path(lender) as name:
                asking.connect(name)
            socket.send_fds(asking, [LENT], [theirs.fileno()])
            return asking.recv(len(LENT)) == LENT
        except OSError:
            return False


def _started(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a fork server that serves the other end of this socket."""
    return subprocess.Popen(
        [sys.executable, "-m", "latebind.forks.process", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a process that forks must have one thread
        process_group=0,  # Ctrl-C is for this process, which ends the others
    )


def fork_server() -> ForkServer:
    """Return a fork server for this process, forked from a lender's if the environment names one."""
    place = os.environ.get(VARIABLE)
    return ForkServer(Path(place) if place else None)


@contextmanager
def lending(forks: ForkServer, place: Path) -> Iterator[None]:
    """Lend the imports of `forks` at the path `place` within the context; any user who may open it can borrow."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        with _short_path(place) as name:
            listening.bind(name)
        listening.listen()
        thread = Thread(target=_lend, args=(forks, listening), name="lender", daemon=True)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)  # wakes the thread
            thread.join()


def _lend(forks: ForkServer, listening: socket.socket) -> None:
    while True:
        try:
            asked, _ = listening.accept()
        except OSError:
            return
        with asked, suppress(OSError):  # a borrower that gets no answer starts its own fork server
            asked.settimeout(ASK_SECONDS)
            _, theirs, _, _ = socket.recv_fds(asked, len(LENT), 1)
            try:
                forks.fork(BORROWED, (), name=NAME, inherited=theirs)
            finally:
                for descriptor in theirs:
                    os.close(descriptor)
            asked.send(LENT)


@contextmanager
def _short_path(place: Path) -> Iterator[str]:
    """Yield a name to bind or connect a socket at `place`, whose path may be too long for a socket."""
    folder = os.open(place.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{place.name}"
    finally:
        os.close(folder)
