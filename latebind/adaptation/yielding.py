"""Has a thread that computes in the background yield its core some thousand times a second.

Linux runs a thread of the class `SCHED_IDLE` when nobody else wants the core. But it decides so only where a thread
wakes, sleeps or yields, and at its ticks, milliseconds apart; and between them it may well choose the idle one while
others wait, because they have had more of the core (EEVDF). Who yields has it choose again.

A timer does it, so that long calls of torch or OpenVINO are interrupted too: its signal has `sched_yield` of the C
library as its handler, and Python does not notice.
"""

import ctypes
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from struct import Struct
from threading import get_native_id

YIELD_SECONDS = 2e-4  # what the thread computes takes a tenth longer
EVENT = Struct("=QiiI44x")  # struct sigevent: value, signal, what is to be done, thread
PERIOD = Struct("=qqqq")  # struct itimerspec: seconds and nanoseconds between two signals, and until the first
SIGEV_THREAD_ID = 4
CLOCK_MONOTONIC = 1


@contextmanager
def yielding_often(wanted: bool = True) -> Iterator[None]:
    """Have this thread yield its core every `YIELD_SECONDS` within this context, if `wanted` and if the system can."""
    timer = _started() if wanted and sys.platform == "linux" else None
    try:
        yield
    finally:
        if timer is not None:
            ctypes.CDLL(None).timer_delete(timer)


def _started() -> ctypes.c_void_p | None:
    """Start a timer for this thread. Without one, where the user may have no more of them, it computes as before."""
    libc = ctypes.CDLL(None)
    number = signal.SIGRTMIN + 1
    handle = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(("signal", libc))
    nanoseconds = int(YIELD_SECONDS * 1e9)
    event = EVENT.pack(0, number, SIGEV_THREAD_ID, get_native_id())
    timer = ctypes.c_void_p()
    with suppress(AttributeError):  # a C library before glibc 2.34 has timers elsewhere
        handle(number, ctypes.cast(libc.sched_yield, ctypes.c_void_p))
        if libc.timer_create(CLOCK_MONOTONIC, event, ctypes.byref(timer)) == 0:
            libc.timer_settime(timer, 0, PERIOD.pack(0, nanoseconds, 0, nanoseconds), None)
            return timer
    return None
