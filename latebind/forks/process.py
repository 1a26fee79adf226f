"""The fork server: `python -m latebind.forks.process`. Started by `client`, never by hand.

It imports what engines and their like need, then forks one whenever it is asked to. It has one thread, and no state
but who has not ended yet. It ends with the process that started it, or when nothing that it forked has run for long.
"""

import gc
import importlib
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from latebind.forks.messages import MESSAGE_BYTES, MOST_DESCRIPTORS, STANDARD, STATUS, Born, Fork
from latebind.prompt import be_usual

IMPORTED = ("latebind.engine.process", "latebind.adaptation.process", "latebind.learned.training_process")
TRAINING = ("torch._dynamo",)  # which the first step of an optimizer imports: more than a second of a core
FURTHER = {"latebind.adaptation.process": TRAINING, "latebind.learned.training_process": TRAINING}
LINGER_SECONDS = 60.0


def main(descriptor: int) -> None:
    """Fork what is asked for until the other end is closed; in each process that comes of it, do what that is for."""
    be_usual()  # what is forked computes; a door that asks for this is prompt
    _import(IMPORTED)
    with socket.socket(fileno=descriptor) as asked:
        server = ForkServer(asked)
        born = server.serve()
        signal.set_wakeup_fd(-1)  # before its socket goes: what was forked may end later
    if born is not None:
        fork, descriptors = born
        importlib.import_module(fork.module).main([*map(str, descriptors), *fork.words])
        _leave()


class ForkServer:
    """Forks on request, and tells how each process ended; ends when nothing has run for `linger` seconds."""

    def __init__(self, asked: socket.socket, *, linger: float = LINGER_SECONDS) -> None:
        self._asked, self._linger = asked, linger
        self._statuses: dict[int, int] = {}  # where the end of each process is told
        self._woken, self._waker = socket.socketpair()
        self._selector = selectors.DefaultSelector()

    def serve(self) -> tuple[Fork, list[int]] | None:
        """Serve until nobody asks any more: None. Returns in each forked process too, with what that is to do."""
        self._listen()
        try:
            return self._served()
        finally:
            signal.set_wakeup_fd(-1)  # who ends from now on would write to a socket that is closed

    def _served(self) -> tuple[Fork, list[int]] | None:
        while self._is_asked():
            message, descriptors, _, _ = socket.recv_fds(self._asked, MESSAGE_BYTES, MOST_DESCRIPTORS)
            if not message:
                return None
            fork = msgspec.json.decode(message, type=Fork)
            _import(FURTHER.get(fork.module, ()))  # once, and only where somebody is to be forked who needs it
            if self._fork(descriptors):
                return fork, _settle(fork, descriptors)
        return None

    def _listen(self) -> None:
        for sock in (self._waker, self._woken):
            sock.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)  # else there is nothing to wake up for
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        for sock in (self._asked, self._woken):
            self._selector.register(sock, selectors.EVENT_READ, sock)

    def _is_asked(self) -> bool:
        """Wait for a request, and tell of processes that end; False where there was nothing to do for long."""
        while found := self._selector.select(None if self._statuses else self._linger):
            ready = [key.data for key, _ in found]
            if self._woken in ready:
                self._woken.recv(MESSAGE_BYTES)
                self._reap()
            if self._asked in ready:
                return True
        return False

    def _reap(self) -> None:
        """Tell of all that have ended."""
        while self._statuses:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            told = self._statuses.pop(process)
            with suppress(BrokenPipeError):  # nobody wants to know
                os.write(told, STATUS.pack(os.waitstatus_to_exitcode(status)))
            os.close(told)

    def _fork(self, descriptors: list[int]) -> bool:
        """Fork; True in the new process, which keeps nothing of this one but the descriptors."""
        status, told = os.pipe()
        try:
            process = os.fork()
        except OSError as error:
            self._answer(Born(error=error.errno), [])
            mine = [status, told, *descriptors]
        else:
            self._statuses[process] = told
            if process == 0:
                os.close(status)
                self._forget()
                return True
            handle = os.pidfd_open(process)  # before it is reaped its number cannot be another's
            self._answer(Born(process), [handle, status])
            mine = [handle, status, *descriptors]
        for descriptor in mine:
            os.close(descriptor)
        return False

    def _answer(self, born: Born, descriptors: list[int]) -> None:
        with suppress(OSError):  # whoever asked has ended, which the next read tells; what was forked notices too
            socket.send_fds(self._asked, [msgspec.json.encode(born)], descriptors)

    def _forget(self) -> None:
        """Close what belongs to the parent of this process."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for sock in (self._asked, self._woken, self._waker):
            sock.close()
        for told in self._statuses.values():
            os.close(told)


def _import(modules: Sequence[str]) -> None:
    """Import what has not been imported yet, for all that are forked from now on."""
    if all(module in sys.modules for module in modules):
        return
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # no collection may touch what all of them share


def _settle(fork: Fork, descriptors: list[int]) -> list[int]:
    """Become what the caller would have started: return the descriptors beyond the standard ones."""
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
    """End without taking apart what was inherited, for that copies its pages first: 130 MB, a quarter of a second."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]))
