"""What both gRPC doors have in common: how they are made, and the drain before they close."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

from latebind.domain.config import DoorConfig
from latebind.server.access import Guard
from latebind.server.limits import Limits
from latebind.server.rpc.context import Context
from latebind.server.rpc.reception import Reception
from latebind.server.rpc.routes import Method, methods
from latebind.server.service import Service

LAST_WORDS = 1.0  # seconds to send errors to calls that the drain had no time for


@dataclass(frozen=True, slots=True)
class DoorSetup:
    """What a gRPC door is made from. It serves `methods` (by path) or, where that is None, the verbs of `service`."""

    service: Service
    config: DoorConfig
    limits: Limits
    guard: Guard
    methods: Mapping[str, Method] | None = None


class BaseDoor(ABC):
    """A door that speaks gRPC while it is open. A subclass for each library carries the calls.

    It is used like `Door`, which may have one. Open it on the event loop that the service belongs to.
    """

    def __init__(self, setup: DoorSetup) -> None:
        self.reception = Reception(Context(setup.service, setup.limits), setup.guard)
        self.port = 0
        self._config = setup.config
        self._limits = setup.limits
        self._methods = setup.methods or methods()
        self._closing: asyncio.Task[None] | None = None

    @abstractmethod
    async def open(self) -> None:
        """Listen; when this returns, calls are answered. Raises `ConfigError` if the address is not available."""

    def close(self) -> None:
        """Begin to close: refuse new calls; calls under way get `Limits.drain_seconds` to end. Await `closed()`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    def hurry(self) -> None:
        """Give calls that are under way no more time."""
        self.reception.give_up()

    async def closed(self) -> None:
        """Return when the door is closed and everything under way has ended."""
        assert self._closing is not None, "nobody has closed the door"
        await self._closing

    async def drain(self) -> None:
        """Refuse new calls, answer those under way, and give up on those that take too long."""
        self.reception.drain()
        await self.reception.emptied(self._limits.drain_seconds)
        self.reception.give_up()

    @abstractmethod
    async def _close(self) -> None:
        """Drain, then close the server and its connections."""
