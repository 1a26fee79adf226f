"""Closes connections whose client sends nothing and takes nothing; requests that are under way are left alone.

All connections are checked from outside at intervals, so no request needs a timer of its own.
"""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Connected(Protocol):
    """What the sweeper needs of a connection."""

    def idle_state(self) -> object:
        """Return a value that stays the same only as long as the client makes no progress.

        None if the connection does not wait for its client.
        """

    def give_up(self) -> None:
        """Close it."""


class Sweeper:
    """Closes connections whose state has been the same for `patience` seconds."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._still: dict[Connected, tuple[object, float]] = {}  # the state, and since when it is the same

    def sweep(self, connections: Iterable[Connected], now: float) -> None:
        """Check all connections at time `now`."""
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
