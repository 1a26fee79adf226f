"""A replica: the very door and engine of one machine. Only the ingress may call it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from msgspec.structs import replace

from latebind.cluster.calls import replica_route
from latebind.cluster.homes import figures_of
from latebind.cluster.scaling import Load, load_between
from latebind.domain.config import DoorConfig, ServeConfig
from latebind.domain.errors import Unavailable
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.repository.selection import Selection
from latebind.server.access import Guard
from latebind.server.door import Door
from latebind.server.gateway import Snapshot
from latebind.server.limits import Limits
from latebind.server.rest.routes import ROUTES
from latebind.server.secured import Secured
from latebind.server.tracing import Explained

PATIENCE = 30.0  # seconds without an engine until Ray is told that this replica is of no use
IDLE = 3600.0  # seconds for which the ingress may keep a connection that it does not use


@dataclass(frozen=True, slots=True)
class Application:
    """What is served, and how: the options of `latebind serve`. `secret` is what ingress and replicas share."""

    selection: Selection
    settings: ServeConfig
    secret: str


class Replica:
    """One engine and its door, open at `host` and `port`. Make one with `start`, end it with `close`."""

    def __init__(
        self, engines: Engines, door: Door, host: str, following: asyncio.Task[None], settings: ServeConfig
    ) -> None:
        self.host = host
        self._engines = engines
        self._door = door
        self._following = following
        self._workers = settings.engine.crew
        self._limited = bool(settings.residency.budget)
        self._before: Snapshot = {"models": {}}
        self._well = time.monotonic()

    @classmethod
    async def start(cls, application: Application, host: str) -> Self:
        """Start the engine and open the door; raises what could not be loaded."""
        settings = application.settings
        order = EngineOrder(
            directories=(),
            engine=settings.engine,
            policy=settings.policy,
            adapted=settings.adaptation.folder,
            residency=settings.residency,
            log_format=settings.observability.log_format,
        )
        engines = await Engines.start(order, application.selection.first(), settings.generations)
        catalogue = Catalogue(engines, application.selection)
        door = Door(
            engines,
            _inside(settings.server, host),
            limits=Limits(idle_seconds=IDLE),
            deadlines=engines.deadlines,
            trace_rate=settings.observability.trace_rate,
            catalogue=catalogue,
            export=_export(settings.observability.otlp),
            routes=(*ROUTES, replica_route()),
            secured=Secured(Guard(token=application.secret), tls=None),
        )
        try:
            await door.open()
        except BaseException:
            await engines.close(0.0)
            raise
        following = asyncio.create_task(catalogue.follow(settings.generations.watch))
        return cls(engines, door, host, following, settings)

    @property
    def port(self) -> int:
        """Where its door listens."""
        return self._door.port

    async def figures(self) -> dict[str, Any]:
        """Return what the ingress places models by, where memory is limited."""
        return figures_of(await self._engines.metrics()) if self._limited else {}

    async def load(self) -> Load:
        """Return how it fared since this was asked last."""
        before, self._before = self._before, await self._engines.metrics()
        return load_between(before, self._before, self._workers)

    def check(self) -> None:
        """Raise `Unavailable` where there has been no engine for long; one that died is mostly replaced at once."""
        now = time.monotonic()
        if self._engines.ready():
            self._well = now
        if now - self._well > PATIENCE:
            raise Unavailable(f"no engine has come up for {PATIENCE:g} s")

    async def close(self) -> None:
        """Answer what is under way, then end the engine."""
        self._door.close()
        await self._door.closed()
        self._following.cancel()
        await self._engines.close()


def _export(url: str) -> Callable[[Explained], None] | None:
    """Return what sends traces to a collector, where there is one."""
    if not url:
        return None
    from latebind.server.telemetry import SpanExport  # noqa: PLC0415  (an optional dependency)

    return SpanExport.over_http(url)


def _inside(config: DoorConfig, host: str) -> DoorConfig:
    """Return how a replica's door listens: on any port, without what the ingress has seen to."""
    return replace(
        config,
        host=host,
        port=0,
        grpc_port=None,
        dashboard=False,
        token_file="",
        admin_token_file="",
        allow_hosts=(),
        tls_cert="",
        tls_key="",
        tls_client_ca="",
    )
