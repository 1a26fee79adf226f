"""A replica: the same door and engine as on a single machine. Only the ingress may call it."""

import asyncio
import secrets
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from latebind.adaptation.beside import start_beside
from latebind.cluster.homes import figures_of
from latebind.cluster.rpc import replica_route
from latebind.cluster.scaling import Load, load_between
from latebind.domain.config import DoorConfig, ServeConfig
from latebind.domain.errors import Unavailable
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.forks.client import ForkServer
from latebind.repository.listing import Selection
from latebind.server.access import Guard, Security
from latebind.server.door import Door, Verbs
from latebind.server.gateway import Snapshot
from latebind.server.limits import Limits
from latebind.server.rest.app import ROUTES

if TYPE_CHECKING:
    from latebind.server.telemetry import SpanExport

PATIENCE = 30.0  # seconds without an engine after which the replica reports itself as unhealthy
IDLE = 3600.0  # seconds for which the ingress may keep an idle connection


@dataclass(frozen=True, slots=True)
class Application:
    """What is served, and how: the options of `latebind serve`. Ingress and replicas share `secret`.

    On the machine of the `lender`, engines are forked from its process, which has imported everything already.
    """

    selection: Selection
    settings: ServeConfig
    secret: str
    lender: Path | None = None


class Replica:
    """One engine and its door, open at `host` and `port`. Create one with `start`, end it with `close`."""

    def __init__(self, engines: Engines, door: Door, host: str, settings: ServeConfig, ends: AsyncExitStack) -> None:
        self.host = host
        self._engines = engines
        self._door = door
        self._ends = ends
        self._workers = settings.engine.crew
        self._limited = bool(settings.residency.budget)
        self._before: Snapshot = {"models": {}}
        self._well = time.monotonic()

    @classmethod
    async def start(cls, application: Application, host: str) -> Self:
        """Start the engine and open the door. Raises what could not be loaded."""
        settings = application.settings
        async with AsyncExitStack() as stack:
            forks = stack.enter_context(ForkServer(application.lender))
            selected = application.selection.first()
            engines = await Engines.start(_order(settings), selected, forks, settings.generations)
            stack.push_async_callback(engines.close)
            catalogue = Catalogue(engines, application.selection)
            following = asyncio.create_task(catalogue.follow(settings.generations.watch))
            stack.callback(following.cancel)
            observer = await start_beside(engines, settings, forks)
            if observer is not None:
                stack.push_async_callback(observer.close)
            export = _export(settings.observability.otlp)
            if export is not None:
                stack.push_async_callback(asyncio.to_thread, export.close)
            door = Door(
                engines,
                _inside(settings.server, host),
                limits=Limits(idle_seconds=IDLE),
                deadlines=engines.deadlines,
                observer=observer,
                trace_rate=settings.observability.trace_rate,
                export=export,
                catalogue=catalogue,
                verbs=Verbs(routes=(*ROUTES, replica_route())),
                security=Security(Guard(token=application.secret), tls=None, behind_ingress=True),
                local=local_name(),
            )
            await stack.enter_async_context(door)
            return cls(engines, door, host, settings, stack.pop_all())

    @property
    def port(self) -> int:
        """The port of its door."""
        return self._door.port

    @property
    def local(self) -> str:
        """The Unix socket of its door, or ""."""
        return self._door.local

    async def figures(self) -> dict[str, Any]:
        """Return the figures by which the ingress places models; empty unless memory is limited."""
        return figures_of(await self._engines.metrics()) if self._limited else {}

    async def load(self) -> Load:
        """Return the replica's load since the last call of this method."""
        before, self._before = self._before, await self._engines.metrics()
        return load_between(before, self._before, self._workers)

    def check(self) -> None:
        """Raise `Unavailable` if there has been no engine for long; one that died is usually replaced at once."""
        now = time.monotonic()
        if self._engines.ready():
            self._well = now
        if now - self._well > PATIENCE:
            raise Unavailable(f"no engine has come up for {PATIENCE:g} s")

    async def close(self) -> None:
        """Answer the calls under way, then end the engine."""
        await self._ends.aclose()


def _order(settings: ServeConfig) -> EngineOrder:
    return EngineOrder(
        directories=(),
        engine=settings.engine,
        policy=settings.policy,
        adapted=settings.adaptation.folder,
        residency=settings.residency,
        log_format=settings.observability.log_format,
    )


def _export(url: str) -> "SpanExport | None":
    """Return the exporter of traces, if a collector is configured."""
    if not url:
        return None
    from latebind.server.telemetry import SpanExport  # noqa: PLC0415  (an optional dependency)

    return SpanExport.over_http(url)


def local_name() -> str:
    """Return a name for an abstract Unix socket, which leaves no file behind; "" except on Linux."""
    return f"\0latebind-{secrets.token_hex(16)}" if sys.platform == "linux" else ""


def _inside(config: DoorConfig, host: str) -> DoorConfig:
    """Return the configuration of a replica's door: any port, and nothing that the ingress handles."""
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
