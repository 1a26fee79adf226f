"""Keeps the door's event loop from sleeping while the reply to a lone request is expected.

`spin_wait` does the same for an engine.
"""

import asyncio
import os
import time
from collections.abc import Callable, Sized

from latebind.engine.spin_wait import SPIN_SECONDS


class ReplySpin:
    """Spins the event loop for up to `SPIN_SECONDS` after a lone request, if the last lone one was answered that fast.

    `sent` is to be called when requests are sent, `replied` before a reply is handled. `under_way` are the requests
    that have no reply yet. Between two turns the loop yields the core to other processes.
    """

    def __init__(self, under_way: Sized, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._under_way = under_way
        self._clock = clock
        self._sent = 0.0
        self._soon = False
        self.spinning = False

    def sent(self) -> None:
        """Requests were sent."""
        if len(self._under_way) == 1:
            self._sent = self._clock()
            if not self.spinning:
                self._spin()

    def replied(self) -> None:
        """A reply has come."""
        if len(self._under_way) == 1:
            self._soon = self._clock() - self._sent < SPIN_SECONDS

    def _spin(self) -> None:
        """Let the loop poll its sockets once more without sleeping, as long as a reply is expected soon."""
        alone = len(self._under_way) == 1
        self.spinning = self._soon and alone and self._clock() - self._sent < SPIN_SECONDS
        if self.spinning:
            os.sched_yield()
            asyncio.get_running_loop().call_soon(self._spin)
