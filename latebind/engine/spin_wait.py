"""Waits for messages: spins for a moment while calls follow each other closely, and otherwise blocks.

Waking a process takes a while, and one that has slept is slow at first. If nothing arrives for longer than
`SPIN_SECONDS`, the next wait blocks at once: so a pause costs one vain spin, however long it is.
"""

import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")

SPIN_SECONDS = 5e-4  # a client that sends again as soon as it has its answer takes less


class SpinWait(Generic[T]):
    """Waits by `select(seconds)`, which returns what has come, or nothing after so many seconds (None: no limit).

    It spins only while `may_spin` says that no other work needs the core.
    """

    def __init__(
        self,
        select: Callable[[float | None], list[T]],
        *,
        may_spin: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._select = select
        self._may_spin = may_spin
        self._clock = clock
        self._was_quick = False  # whether the last wait ended within SPIN_SECONDS

    def wait(self, seconds: float | None) -> list[T]:
        """Return what has come, as `select` does."""
        found = self._select(0.0)
        if found or seconds == 0.0:
            return found
        begun = now = self._clock()
        if self._was_quick and self._may_spin():
            end = begun + (SPIN_SECONDS if seconds is None else min(SPIN_SECONDS, seconds))
            while not found and now < end:
                os.sched_yield()  # lets others use the core
                found = self._select(0.0)
                now = self._clock()
        if not found:
            found = self._select(None if seconds is None else max(0.0, begun + seconds - now))
            now = self._clock()
        self._was_quick = bool(found) and now - begun < SPIN_SECONDS
        return found
