"""The fork server: `python -m latebind.forks.process`. Started by `client`, never by hand.

It imports what engines and similar processes need, then forks one for each request. It has one thread, and no state
except which processes have not ended yet. It ends with the process that started it, or when it is idle for long.
"""

import gc
import importlib
import logging
import os
import selectors
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from latebind.prompt import be_usual

MESSAGE_BYTES = 1 << 18
MOST_DESCRIPTORS = 16
STANDARD = 3  # descriptors that come first: input, output and errors
STATUS = struct.Struct("=i")  # an exit status in `subprocess`'s form


@dataclass(frozen=True, slots=True)
class Fork:
    """Asks for a process that calls `main` of a module, with the numbers of its further descriptors, then `words`.

    It gets the caller's directory, environment and cores. `name` is shown by `top` and `ps -o comm`, 15 bytes at most.
    `imports` are modules that it will need: they are imported before it is forked, once for all that follow.
    """

    module: str
    words: list[str]
    name: str
    directory: str
    environment: dict[str, str]
    cores: list[int]
    imports: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ForkResult:
    """The process id, or the `error` (an errno) that prevented the fork.

    A handle of the process and the pipe on which its exit status will be sent come with it.
    """

    process: int = 0
    error: int | None = None


IMPORTED = ("latebind.engine.process", "latebind.adaptation.process")
LINGER_SECONDS = 60.0


def main(words: list[str]) -> None:
    """Serve the socket of this descriptor until the other end is closed; in each forked process, run its module."""
    be_usual()  # forked processes compute: they do not need the short time slices of a frontend that started this one
    _import(IMPORTED)
    with socket.socket(fileno=int(words[0])) as asked:
        born = ForkServer(asked).serve()
    if born is not None:
        fork, descriptors = born
        importlib.import_module(fork.module).main([*map(str, descriptors), *fork.words])
        _leave()


class ForkServer:
    """Forks on request, and reports each exit status; ends when nothing has run for `linger` seconds."""

    def __init__(self, asked: socket.socket, *, linger: float = LINGER_SECONDS) -> None:
        self._asked, self._linger = asked, linger
        self._statuses: dict[int, int] = {}  # the pipe for the exit status of each process
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> tuple[Fork, list[int]] | None:
        """Serve until the other end is closed or nothing has run for long, and return None.

        In each forked process, it returns the request and the process's descriptors.
        """
        for sock in (self._waker, self._woken):
            sock.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # else there is nothing to wake up for
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for sock in (self._asked, self._woken):
            self._selector.register(sock, selectors.EVENT_READ, sock)
        try:
            while self._is_asked():
                message, descriptors, _, _ = socket.recv_fds(self._asked, MESSAGE_BYTES, MOST_DESCRIPTORS)
                if not message:
                    return None
                fork = msgspec.json.decode(message, type=Fork)
                _import(fork.imports)  # once, for the first process that needs it
                if self._fork(descriptors):
                    return fork, _take_over(fork, descriptors)
            return None
        finally:
            signal.set_wakeup_fd(-1)  # a process that ends from now on would cause a write to a closed socket

    def _is_asked(self) -> bool:
        """Wait for a request, reporting processes that end; False after a long time without any."""
        while found := self._selector.select(None if self._statuses else self._linger):
            ready = [key.data for key, _ in found]
            if self._woken in ready:
                self._woken.recv(MESSAGE_BYTES)
                self._reap()
            if self._asked in ready:
                return True
        return False

    def _reap(self) -> None:
        """Report the exit status of all processes that have ended.

        Each is asked for by its id: what an imported module has started is a child of this process too, and not ours.
        """
        for process, status_pipe in list(self._statuses.items()):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                del self._statuses[process]
                with suppress(BrokenPipeError):  # the client has gone
                    os.write(status_pipe, STATUS.pack(os.waitstatus_to_exitcode(status)))
                os.close(status_pipe)

    def _fork(self, descriptors: list[int]) -> bool:
        """Fork; return True in the new process, which inherits nothing of this one but the descriptors."""
        status, status_pipe = os.pipe()
        try:
            process = os.fork()
        except OSError as error:
            self._answer(ForkResult(error=error.errno), [])
            mine = [status, status_pipe, *descriptors]
        else:
            self._statuses[process] = status_pipe
            if process == 0:
                os.close(status)
                self._forget()
                return True
            handle = os.pidfd_open(process)  # its process id cannot be reused before it is reaped
            self._answer(ForkResult(process), [handle, status])
            mine = [handle, status, *descriptors]
        for descriptor in mine:
            os.close(descriptor)
        return False

    def _answer(self, born: ForkResult, descriptors: list[int]) -> None:
        with suppress(OSError):  # the client has ended: the next read shows it, and the forked process notices too
            socket.send_fds(self._asked, [msgspec.json.encode(born)], descriptors)

    def _forget(self) -> None:
        """Close what belongs to the parent of this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for sock in (self._asked, self._woken, self._waker):
            sock.close()
        for status_pipe in self._statuses.values():
            os.close(status_pipe)


def _import(modules: Sequence[str]) -> None:
    """Import what has not been imported yet, for all processes forked from now on."""
    if all(module in sys.modules for module in modules):
        return
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # a collection would copy the pages that all processes share


def _take_over(fork: Fork, descriptors: list[int]) -> list[int]:
    """Take on the caller's directory, environment, cores and streams; return the further descriptors."""
    for number, descriptor in enumerate(descriptors[:STANDARD]):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(fork.directory)
    os.environ.clear()
    os.environ.update(fork.environment)
    os.sched_setaffinity(0, fork.cores)
    Path("/proc/self/comm").write_text(fork.name)
    return descriptors[STANDARD:]


def _leave() -> NoReturn:
    """Exit without cleaning up what was inherited, which would copy its pages first: 130 MB, a quarter of a second."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
