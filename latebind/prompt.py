"""Makes the system run a thread soon after it wakes, although others compute: for threads that mostly wait.

Linux hands out cores in slices of a few milliseconds, and a thread that wakes may have to wait until the slice of
another ends, at every step of a request. A thread with shorter slices gets the same share of the core, in more and
shorter pieces that begin earlier (EEVDF, Linux 6.12). It needs no privileges; older systems ignore it.
"""

import ctypes
import os
import platform
import sys
from struct import Struct

SLICE = 100_000  # nanoseconds, the least that Linux allows
ATTRIBUTES = Struct("=IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # the numbers of sched_setattr and sched_getattr


def be_prompt() -> None:
    """Ask for short slices, for this thread and those that it will start; nothing else changes."""
    _ask_for(SLICE)


def be_usual() -> None:
    """Return to slices of the usual length."""
    _ask_for(0)


def slice_seconds(thread: int = 0) -> float | None:
    """Return the time slice of a thread, or of a process's first thread; 0: of this one; None if unknown."""
    if not _knows():
        return None
    found = ctypes.create_string_buffer(ATTRIBUTES.size)
    failed = ctypes.CDLL(None).syscall(CALLS[platform.machine()][1], thread, found, ATTRIBUTES.size, 0)
    nanoseconds: int = 0 if failed else ATTRIBUTES.unpack(found.raw)[5]
    return nanoseconds / 1e9 or None


def _ask_for(nanoseconds: int) -> None:
    """Ask for slices of this length. A thread that was started with another policy, as by `chrt`, keeps it."""
    if not _knows() or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    wanted = ATTRIBUTES.pack(ATTRIBUTES.size, os.SCHED_OTHER, 0, nice, 0, nanoseconds, 0, 0)
    ctypes.CDLL(None).syscall(CALLS[platform.machine()][0], 0, wanted, 0)


def _knows() -> bool:
    return sys.platform == "linux" and platform.machine() in CALLS
