"""Closes connections whose client brings nothing and takes nothing. What is under way in the server is left alone.

Looked at from outside now and then, so that a request pays for no timer of its own.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Connected(Protocol):
    """A connection, as far as this looks at it."""

    def idle_state(self) -> object:
        """Return something that stays the same only while the client alone could bring it on; None if it need not."""

    def give_up(self) -> None:
        """Close it."""


class Sweeper:
    """Gives up connections that stayed the same for `patience` seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._still: dict[Connected, tuple[object, float]] = {}  # since when

    def sweep(self, connections: Iterable[Connected], now: float) -> None:
        """Look at all connections, at time `now`."""
        before, self._still = self._still, {}
        for connection in tuple(connections):
            state = connection.idle_state()
            if state is None:
                continue
            then, since = before.get(connection, (state, now))
            if then != state:
                since = now
            if now - since >= self._patience:
                connection.give_up()
            else:
                self._still[connection] = (state, since)

    async def run(self, connections: Iterable[Connected]) -> None:
        """Sweep until cancelled, four times in `patience` seconds."""
        clock = asyncio.get_running_loop().time
        while True:
            self.sweep(connections, clock())
            await asyncio.sleep(self._patience / 4)
