"""Stops one thread of another process, as a stage would that never returns: the others go on. Linux, by ptrace.

A signal stops a process with all its threads. The thread goes on when this process ends, or ends with its own.
"""

import ctypes
import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

from latebind.domain.errors import ConfigError

SEIZE, INTERRUPT = 0x4206, 0x4207  # of <sys/ptrace.h>
EVERY_THREAD = 0x40000000  # __WALL of waitpid


def freeze(process: int) -> Thread:
    """Stop a thread that runs at this moment, and return the thread of ours that holds it until it ends.

    Waits for one to run. Raises `ConfigError` if this process may not, or the other has ended.
    """
    stopped, failed = Event(), list[OSError]()
    holder = Thread(target=_hold, args=(process, stopped, failed), name="freezes", daemon=True)
    holder.start()  # only the thread that has stopped another can wait for it
    stopped.wait()
    if failed:
        raise ConfigError(
            f"no thread of process {process} can be stopped ({failed[0]}): may this user trace processes?"
        )
    return holder


def _hold(process: int, stopped: Event, failed: list[OSError]) -> None:
    """Root of the thread."""
    try:
        thread = _stopped(process)
    except OSError as error:
        failed.append(error)
        return
    finally:
        stopped.set()
    while os.WIFSTOPPED(os.waitpid(thread, EVERY_THREAD)[1]):
        pass


def _stopped(process: int) -> int:
    """Stop a thread that runs and return it."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ptrace.restype = ctypes.c_long
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
