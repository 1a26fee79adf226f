"""The fork server: `python -m latebind.forks.process`. Started by `client`, never by hand.

It imports what engines and similar processes need, then forks one for each request. It has one thread, and no state
except which processes have not ended yet. It ends with the process that started it, or after being idle for long.
"""

import gc
import importlib
import logging
import os
import selectors
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

import msgspec

from latebind.heap import importing
from latebind.prompt import be_usual

MESSAGE_BYTES = 1 << 18
MOST_DESCRIPTORS = 16
STANDARD = 3  # descriptors that come first: input, output and errors


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
    """The process id, sent with a handle of the process, or the `error` (an errno) that prevented the fork."""

    process: int = 0
    error: int | None = None


IMPORTED = ("latebind.engine.process",)
UNUSED = ("openvino.tools.ovc",)
"""Modules that are replaced by None: OpenVINO's model converter, which takes half of its import time and reports each
import to its maker over the network, from a thread, while a process that forks must have only one."""
LINGER_SECONDS = 60.0


def main(words: list[str]) -> None:
    """Serve the socket of this descriptor until the other end is closed; in each forked process, run its module."""
    be_usual()  # forked processes compute: they do not need the short time slices of a frontend that started this one
    sys.modules.update(dict.fromkeys(UNUSED))  # type: ignore[arg-type]  # None: Python raises ImportError
    _import(IMPORTED)
    with socket.socket(fileno=int(words[0])) as asked:
        born = ForkServer(asked).serve()
    if born is not None:
        fork, descriptors = born
        importlib.import_module(fork.module).main([*map(str, descriptors), *fork.words])
        _leave()


class ForkServer:
    """Forks on request; ends when nothing has run for `linger` seconds."""

    def __init__(self, asked: socket.socket, *, linger: float = LINGER_SECONDS) -> None:
        self._asked, self._linger = asked, linger
        self._processes: dict[int, int] = {}  # by the handles that signal their end
        self._selector = selectors.DefaultSelector()
        self._selector.register(asked, selectors.EVENT_READ)

    def serve(self) -> tuple[Fork, list[int]] | None:
        """Serve until the other end is closed or nothing has run for long, and return None.

        In each forked process, it returns the request and the process's descriptors.
        """
        while self._is_asked():
            message, descriptors, _, _ = socket.recv_fds(self._asked, MESSAGE_BYTES, MOST_DESCRIPTORS)
            if not message:
                return None
            fork = msgspec.json.decode(message, type=Fork)
            _import(fork.imports)  # once, for the first process that needs it
            if self._fork(descriptors):
                return fork, _take_over(fork, descriptors)
        return None

    def _is_asked(self) -> bool:
        """Wait for a request, reaping processes that end; False after a long time without any.

        Only those are waited for: processes started by imported modules are children of this process too.
        """
        while found := self._selector.select(None if self._processes else self._linger):
            ready = {key.fd for key, _ in found}
            for handle in ready & self._processes.keys():
                os.waitpid(self._processes.pop(handle), 0)
                self._selector.unregister(handle)
                os.close(handle)
            if self._asked.fileno() in ready:
                return True
        return False

    def _fork(self, descriptors: list[int]) -> bool:
        """Fork; return True in the new process, which inherits nothing from this one but the descriptors."""
        try:
            process = os.fork()
        except OSError as error:
            self._answer(ForkResult(error=error.errno), [])
        else:
            if process == 0:
                self._selector.close()
                self._asked.close()
                for handle in self._processes:
                    os.close(handle)
                return True
            handle = os.pidfd_open(process)  # its process id cannot be reused before it is reaped
            self._processes[handle] = process
            self._selector.register(handle, selectors.EVENT_READ)
            self._answer(ForkResult(process), [handle])
        for descriptor in descriptors:
            os.close(descriptor)
        return False

    def _answer(self, born: ForkResult, descriptors: list[int]) -> None:
        with suppress(OSError):  # the client has ended: the next read shows it, and the forked process notices too
            socket.send_fds(self._asked, [msgspec.json.encode(born)], descriptors)


def _import(modules: Sequence[str]) -> None:
    """Import what has not been imported yet, for all processes forked from now on."""
    if all(module in sys.modules for module in modules):
        return
    with importing():
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
    """Exit without cleaning up what was inherited, which would first copy its pages: 130 MB, a quarter of a second."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
