"""How a listener waits: awake for a moment while calls follow each other closely, else asleep.

It takes a while to wake a process, and one that has slept is slow at first. Where nothing has come for longer than
`AWAKE` it sleeps at once the next time, so that it is awake in vain once, not for as long as nobody calls.
"""

import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

AWAKE = 5e-4  # seconds; a client that sends again as soon as it has its answer takes less


class Waiting(Generic[T]):
    """Waits by `select(seconds)`, which returns what has come, nothing after so many seconds (None: it waits on).

    It stays awake only where `rests` says that nothing else is to be done.
    """

    def __init__(
        self,
        select: Callable[[float | None], list[T]],
        *,
        rests: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._select = select
        self._rests = rests
        self._clock = clock
        self._brisk = False  # whether something came soon the last time

    def wait(self, seconds: float | None) -> list[T]:
        """Return what has come, as `select` does."""
        found = self._select(0.0)
        if found or seconds == 0.0:
            return found
        begun = now = self._clock()
        if self._brisk and self._rests():
            end = begun + (AWAKE if seconds is None else min(AWAKE, seconds))
            while not found and now < end:
                os.sched_yield()  # to whoever wants the core
                found = self._select(0.0)
                now = self._clock()
        if not found:
            found = self._select(None if seconds is None else max(0.0, begun + seconds - now))
            now = self._clock()
        self._brisk = bool(found) and now - begun < AWAKE
        return found
