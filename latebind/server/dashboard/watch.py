"""Looks at the engine once a second as long as somebody looks at the page, however many they are."""

import asyncio
import logging
import time
from contextlib import suppress

from latebind.domain.errors import LatebindError
from latebind.domain.picture import Picture
from latebind.server.dashboard.history import History
from latebind.server.gateway import Snapshot
from latebind.server.service import Service

EVERY = 1.0  # seconds from one snapshot to the next
LINGER = 300.0  # seconds without anybody who looks, until no more are taken
PATIENCE = 2.0  # seconds for an engine to answer as the door closes
SOONEST = 0.1  # seconds from one picture to the next

logger = logging.getLogger(__name__)


class Watch:
    """The last snapshot, the history of those before, and pictures; all are of the same engine for all who look."""

    def __init__(
        self, service: Service, *, every: float = EVERY, linger: float = LINGER, patience: float = PATIENCE
    ) -> None:
        self.history = History()
        self.snapshot: Snapshot = {"models": {}}
        self._service = service
        self._every = every
        self._linger = linger
        self._patience = patience
        self._looked = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._seen = asyncio.Event()
        self._closed = asyncio.Event()
        self._drawing = asyncio.Lock()
        self._drawn = 0.0
        self._picture = Picture()

    @property
    def idle(self) -> bool:
        """Whether no more snapshots are taken, for nobody looks."""
        return self._watching is None

    async def look(self) -> None:
        """Have the snapshot be at most about a second old, and go on like that for as long as somebody looks."""
        self._looked = time.monotonic()
        if self._closed.is_set():
            return
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        await self._seen.wait()

    async def picture(self) -> Picture:
        """Return what is under way; those who ask at about the same time get the same. Raises `Unavailable`."""
        async with self._drawing:
            if time.monotonic() - self._drawn >= SOONEST:
                self._picture = await self._service.picture()
                self._drawn = time.monotonic()
            return self._picture

    async def close(self) -> None:
        """Take no more snapshots; what was asked is awaited for a while, or its answer would be taken for another's."""
        self._closed.set()
        if self._watching is not None:
            await asyncio.wait({self._watching}, timeout=self._patience)
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        self.history.pause()
        try:
            while not self._closed.is_set() and time.monotonic() - self._looked < self._linger:
                await self._take()
                self._seen.set()
                await self._rest()
        finally:
            self._seen.set()  # nobody waits for a watch that broke down
            self._seen = asyncio.Event()
            self._watching = None

    async def _rest(self) -> None:
        """Return a while later, or as soon as the door closes."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), self._every)

    async def _take(self) -> None:
        """Take a snapshot; without an engine the last one stands."""
        try:
            self.snapshot = await self._service.metrics()
        except LatebindError as error:
            logger.debug("no snapshot for the dashboard: %s", error)
            return
        self.history.add(self.snapshot, time.time())
