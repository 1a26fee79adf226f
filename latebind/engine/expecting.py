"""Keeps the door's event loop awake while the answer to a lone call is to come soon, as `waiting` keeps an engine."""

import asyncio
import os
import time
from collections.abc import Callable, Sized

from latebind.engine.waiting import AWAKE


class Expecting:
    """Hears of calls that are sent to an engine, and of answers before they are taken in.

    The loop does not sleep for up to `AWAKE` seconds where one request alone is `under_way` and the last such was
    answered within that time. Between two looks it gives way to whoever wants the core.
    """

    def __init__(self, under_way: Sized, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._under_way = under_way
        self._clock = clock
        self._sent = 0.0
        self._soon = False
        self.looking = False

    def sent(self) -> None:
        """Requests were sent."""
        if len(self._under_way) == 1:
            self._sent = self._clock()
            if not self.looking:
                self._look()

    def heard(self) -> None:
        """One has been answered."""
        if len(self._under_way) == 1:
            self._soon = self._clock() - self._sent < AWAKE

    def _look(self) -> None:
        """Have the loop look at its sockets once more without sleeping, as long as that is worth it."""
        alone = len(self._under_way) == 1
        self.looking = self._soon and alone and self._clock() - self._sent < AWAKE
        if self.looking:
            os.sched_yield()
            asyncio.get_running_loop().call_soon(self._look)
