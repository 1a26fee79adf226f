"""Stops one thread of another process, as a stage would that never returns: the others go on. Linux, by ptrace.

A signal stops a process with all its threads. The thread goes on when this process ends, or ends with its own.
"""

import ctypes
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from latebind.domain.errors import ConfigError

SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17  # of <sys/ptrace.h>
EVERY_THREAD = 0x40000000  # __WALL of waitpid
LOOK_SECONDS = 0.05  # between two looks whether the thread has ended


class Frozen:
    """A thread of another process that stands still until it is told to go on or its process ends."""

    def __init__(self, process: int) -> None:
        """Stop a thread that runs at this moment; waits for one to run.

        Raises `ConfigError` if this process may not, or the other has ended.
        """
        self._stopped, self._go_on, self._failed = Event(), Event(), list[OSError]()
        # Only the thread that has stopped another can wait for it.
        self._holder = Thread(target=self._hold, args=(process,), name="freezes", daemon=True)
        self._holder.start()
        self._stopped.wait()
        if self._failed:
            why = self._failed[0]
            raise ConfigError(f"no thread of process {process} can be stopped ({why}): may this user trace processes?")

    def thaw(self) -> None:
        """Have the thread go on, if it is still there."""
        self._go_on.set()
        self._holder.join()

    def _hold(self, process: int) -> None:
        """Root of the thread."""
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        ptrace.restype = ctypes.c_long
        try:
            thread = _stopped(ptrace, process)
        except OSError as error:
            self._failed.append(error)
            return
        finally:
            self._stopped.set()
        while not self._go_on.wait(LOOK_SECONDS):
            ended, status = os.waitpid(thread, EVERY_THREAD | os.WNOHANG)
            if ended and not os.WIFSTOPPED(status):
                return
        ptrace(DETACH, thread, None, None)


def _stopped(ptrace: Callable[..., int], process: int) -> int:
    """Stop a thread that runs and return it."""
    for thread in _running(process):
        if not (ptrace(SEIZE, thread, None, None) or ptrace(INTERRUPT, thread, None, None)):
            os.waitpid(thread, EVERY_THREAD)  # until it has stopped
            return thread
        if (error := ctypes.get_errno()) != errno.ESRCH:  # else it has ended meanwhile
            raise OSError(error, os.strerror(error))
    raise AssertionError("threads are looked for until there is one")


def _running(process: int) -> Iterator[int]:
    """Yield threads of a process that run when they are looked at. Raises `OSError` once it has ended."""
    while True:
        for place in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # it has ended meanwhile
                if (place / "stat").read_text().rpartition(")")[2].split()[0] == "R":
                    yield int(place.name)
