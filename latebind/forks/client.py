"""The other end of the fork server: starts it, asks it for processes and hears how they end. Why so: decision 28."""

import asyncio
import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import msgspec

from latebind.forks.messages import MESSAGE_BYTES, STATUS, Born, Fork
from latebind.forks.place import name_of

HANDLES = 2  # that are sent for each process: on the process itself, and on the news of its end
UNKNOWN = 255  # the status of a process that outlived the fork server
LENT = b"lent"
LEND_SECONDS = 30.0  # that a lender may take, which may still import


class Forked:
    """A process that was forked. As much of `subprocess.Popen` as is needed for what is no child of this process.

    Its descriptors are closed once its end is known and nobody waits for it any more.
    """

    def __init__(self, process: int, handle: int, status: int) -> None:
        self.pid = process
        self.returncode: int | None = None
        self._handle, self._status = self._descriptors = [handle, status]
        self._lock = Lock()
        self._looking = 0  # threads that use the handle

    def poll(self) -> int | None:
        """Return how it ended, as `Popen.poll` does; None while it runs."""
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, once it has. Raises `TimeoutError` where it still runs after so many seconds."""
        ended = self._ended(timeout)
        if ended is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout:g} s")
        return ended

    def kill(self) -> None:
        """End it at once, unless it has ended."""
        with self._lock, suppress(ProcessLookupError):
            if self.returncode is None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def _ended(self, seconds: float | None) -> int | None:
        """Return how it ended, if it does within so many seconds; several threads may wait for that."""
        with self._lock:
            if self.returncode is not None:
                return self.returncode
            self._looking += 1
        try:
            looked = select.poll()
            looked.register(self._handle, select.POLLIN)
            if looked.poll(None if seconds is None else 1000.0 * seconds):
                self._note_end()
        finally:
            with self._lock:
                self._looking -= 1
                if self.returncode is not None and not self._looking:
                    self._close()
        return self.returncode

    def _note_end(self) -> None:
        with self._lock:
            if self.returncode is None:
                told = os.read(self._status, STATUS.size)
                self.returncode = STATUS.unpack(told)[0] if told else UNKNOWN

    def _close(self) -> None:
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __del__(self) -> None:
        self._close()


class ForkServer:
    """Forks processes that have imported torch. Threads may share one; what is forked outlives `close`.

    The process behind it starts with the first request, or with `warm`; it is started again where it has ended. Where
    somebody lends at `lender` (`lending`), it is forked from theirs.
    """

    def __init__(self, lender: Path | None = None) -> None:
        self._lender = lender
        self._lock = Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def warm(self) -> None:
        """Have it begin to import, so that the first process is there sooner; does not wait."""
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
    ) -> Forked:
        """Return a process that calls `main` of a module with the numbers of the inherited descriptors, then `words`.

        `standard` are its input, output and errors; else it has no input, and writes where this process does. Waits for
        the imports the first time. Raises `OSError` where there is no room for a process.
        """
        with open(os.devnull, "rb") as nothing, self._lock:
            streams = standard or (nothing.fileno(), 1, 2)
            fork = Fork(module, list(words), name, os.getcwd(), dict(os.environ), sorted(os.sched_getaffinity(0)))
            message = msgspec.json.encode(fork)
            try:
                return self._ask(message, [*streams, *inherited])
            except EndedError:  # it had nothing to do for long, or was killed
                self._disconnect()
                return self._ask(message, [*streams, *inherited])

    async def forked(self, module: str, words: Sequence[str], *, name: str, inherited: Sequence[int]) -> Forked:
        """Do what `fork` does beside the loop; where this is cancelled, only once nobody uses `inherited` any more."""
        fork = partial(self.fork, module, words, name=name, inherited=inherited)
        forking = asyncio.ensure_future(asyncio.to_thread(fork))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            await asyncio.wait({forking})
            raise

    def close(self) -> None:
        """End the process behind it, not those that it has forked."""
        with self._lock:
            self._disconnect()

    def _connected(self) -> socket.socket:
        if self._socket is None:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = None if _borrowed(self._lender, theirs) else _started(theirs)
        return self._socket

    def _ask(self, message: bytes, descriptors: Sequence[int]) -> Forked:
        connected = self._connected()
        try:
            socket.send_fds(connected, [message], descriptors)
            answer, handles, _, _ = socket.recv_fds(connected, MESSAGE_BYTES, HANDLES)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise EndedError from error
        if not answer:
            raise EndedError
        born = msgspec.json.decode(answer, type=Born)
        if born.error is not None:
            raise OSError(born.error, os.strerror(born.error))
        if len(handles) < HANDLES:  # this process may open no more files; the child ends, as nobody holds its handles
            for handle in handles:
                os.close(handle)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return Forked(born.process, *handles)

    def _disconnect(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()  # it may still import
            self._process.wait()
        self._socket = self._process = None


def _borrowed(lender: Path | None, theirs: socket.socket) -> bool:
    """Have a fork server forked that is asked on the other end of a socket; False where nobody lends one."""
    if lender is None:
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
        asking.settimeout(LEND_SECONDS)
        try:
            with name_of(lender) as name:
                asking.connect(name)
            socket.send_fds(asking, [LENT], [theirs.fileno()])
            return asking.recv(len(LENT)) == LENT
        except OSError:
            return False


def _started(theirs: socket.socket) -> subprocess.Popen[bytes]:
    """Start a fork server that is asked on the other end of a socket."""
    return subprocess.Popen(
        [sys.executable, "-m", "latebind.forks.process", str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # whoever forks must have one thread
        process_group=0,  # Ctrl-C is for this process, which ends the others
    )


class EndedError(OSError):
    """The fork server has ended."""
