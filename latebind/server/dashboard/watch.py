"""Takes a snapshot of the engine once a second while anybody looks at the page, however many look."""

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
LINGER = 300.0  # seconds after the last look until no more snapshots are taken
PATIENCE = 2.0  # seconds that the engine has to answer when the door closes
SOONEST = 0.1  # seconds from one picture to the next

logger = logging.getLogger(__name__)


class Watch:
    """The last snapshot, the history of those before, and pictures, shared by everybody who looks."""

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
        """Whether no snapshots are taken at the moment, because nobody looks."""
        return self._watching is None

    async def look(self) -> None:
        """Return once the snapshot is at most about a second old, and keep taking snapshots for a while."""
        self._looked = time.monotonic()
        if self._closed.is_set():
            return
        if self._watching is None:
            self._watching = asyncio.create_task(self._watch())
        await self._seen.wait()

    async def picture(self) -> Picture:
        """Return what the engine is doing; calls at about the same time get the same picture. Raises `Unavailable`."""
        async with self._drawing:
            if time.monotonic() - self._drawn >= SOONEST:
                self._picture = await self._service.picture()
                self._drawn = time.monotonic()
            return self._picture

    async def close(self) -> None:
        """Stop taking snapshots, but wait a while for one that was asked for.

        Otherwise its reply would be taken for that to a later question.
        """
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
            self._seen.set()  # so that nobody waits for a watch that has failed
            self._seen = asyncio.Event()
            self._watching = None

    async def _rest(self) -> None:
        """Return after a while, or as soon as the door closes."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._closed.wait(), self._every)

    async def _take(self) -> None:
        """Take a snapshot; if there is no engine, keep the last one. The history only has new ones."""
        try:
            self.snapshot = await self._service.metrics()
        except LatebindError as error:
            logger.debug("no snapshot for the dashboard: %s", error)
            return
        if "age" not in self.snapshot:
            self.history.add(self.snapshot, time.time())
