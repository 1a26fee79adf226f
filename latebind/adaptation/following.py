"""An observer that outlives its service: another is started when it dies, or the models that it follows are others."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from latebind.adaptation.client import AdaptationClient, NothingToFollow, VersionsInUse
from latebind.adaptation.messages import AdaptationOrder
from latebind.domain.errors import LatebindError
from latebind.domain.model import ModelSpec
from latebind.forks.client import ForkServer
from latebind.repository.listing import Fingerprint
from latebind.server.gateway import AdaptationFigures, Answer, Array

logger = logging.getLogger(__name__)

PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds until one that has died is followed by another: twice as many each time


@dataclass(frozen=True, slots=True)
class Followed:
    """Models that have learned caches, in the order of the directories, and what tells whether they are others."""

    order: AdaptationOrder
    models: tuple[ModelSpec, ...]
    prints: tuple[Fingerprint | None, ...]


class Following:
    """Passes on what the door answers. `find` says what is to be followed now, None for nothing.

    Begin with `begin`, say `look` when what is served may be another, end with `close`.
    """

    def __init__(self, find: Callable[[], Followed | None], in_use: VersionsInUse, forks: ForkServer) -> None:
        self._find = find
        self._in_use = in_use
        self._forks = forks
        self._followed: Followed | None = None
        self._client: AdaptationClient | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._pause, self._begun = PAUSE, 0.0

    def answered(self, spec: ModelSpec, rows: Mapping[str, Sequence[Array]], answer: Answer, client: str) -> None:
        """Tell the service, if there is one at the moment."""
        if self._client is not None:
            self._client.answered(spec, rows, answer, client)

    def unusable(self, model: str, version: str) -> None:
        """Tell the service that the engine cannot use a version; one that begins later finds out by itself."""
        if self._client is not None:
            self._client.unusable(model, version)

    def figures(self) -> Mapping[str, AdaptationFigures]:
        """Return what the service last told, by model."""
        return {} if self._client is None else self._client.figures()

    async def begin(self, patience: float) -> None:
        """Have the service follow what is there, and wait for that, but not longer than `patience` seconds.

        It runs only on what others leave of the cores, so on a busy machine it may take minutes to start. Raises
        `ConfigError` where it does not start, and that is known by then.
        """
        first = asyncio.create_task(self.renew())
        await asyncio.wait({first}, timeout=patience)
        if not first.done():
            logger.warning("learned caches are not followed yet: no core is idle for the adaptation service to start")
            self._renewing = asyncio.create_task(self._renew(first))
            return
        try:
            first.result()
        except NothingToFollow as error:
            logger.warning("nothing to adapt: %s", error)

    async def renew(self) -> None:
        """Have the service follow what is there now. Raises `ConfigError` where it does not start."""
        before, self._client = self._client, None
        if before is not None:
            await before.close()
        self._followed = found = self._find()
        if found is not None:
            client = await AdaptationClient.start(found.order, found.models, self._in_use, self._forks)
            self._client = client
            self._begun = time.monotonic()
            client.when_ended(lambda: self._lost(client))

    def look(self) -> None:
        """See whether what is followed is another; then nothing is told until a service is there that knows it."""
        if self._renewing is None and self._find() != self._followed:
            self._renewing = asyncio.create_task(self._renew())

    async def close(self) -> None:
        """End the service."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait({self._renewing})
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    def _lost(self, client: AdaptationClient) -> None:
        """Hear that a service has ended; if nobody told it to, another is started after a pause."""
        if client is not self._client:
            return
        lived = time.monotonic() - self._begun
        self._pause = PAUSE if lived > LONGEST_PAUSE else min(2.0 * self._pause, LONGEST_PAUSE)
        logger.error("the adaptation service has died: nobody watches fidelity until another is there")
        self._client = None
        self._renewing = asyncio.create_task(self._renew(asyncio.create_task(self._again(client))))

    async def _again(self, dead: AdaptationClient) -> None:
        """Start another service. If that fails, try again, after a longer pause each time."""
        await dead.close()
        while True:
            await asyncio.sleep(self._pause)
            try:
                await self.renew()
            except NothingToFollow:
                raise
            except (LatebindError, OSError) as error:
                logger.error("no other adaptation service can be started yet: %s", error)
                self._pause = min(2.0 * self._pause, LONGEST_PAUSE)
            else:
                return

    async def _renew(self, begun: asyncio.Task[None] | None = None) -> None:
        """Renew, behind what has `begun`, until nothing changes meanwhile; without a service, serving goes on."""
        try:
            if begun is not None:
                await begun
            while self._find() != self._followed:
                await self.renew()
        except (LatebindError, OSError) as error:
            logger.error("learned caches are not followed any more: %s", error)
        finally:
            self._renewing = None
