"""A replica: the same frontend and engine as on a single machine. Only the ingress may call it."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from msgspec.structs import replace

from latebind.adaptation.client import start_beside
from latebind.cluster.placement import Costs, Report
from latebind.cluster.rpc import replica_route
from latebind.cluster.scaling import Load, load_between
from latebind.domain.config import FrontendConfig, ServeConfig
from latebind.domain.errors import Unavailable
from latebind.engine.catalogue import Catalogue
from latebind.engine.engines import Engines
from latebind.engine.order import EngineOrder
from latebind.forks.client import ForkServer
from latebind.repository.listing import Selection
from latebind.server.access import Guard, Security
from latebind.server.frontend import Frontend, Verbs
from latebind.server.gateway import Snapshot
from latebind.server.limits import Limits
from latebind.server.rest.routes import ROUTES

if TYPE_CHECKING:
    from latebind.server.telemetry import SpanExport

PATIENCE = 30.0  # seconds without an engine after which the replica reports itself as unhealthy
IDLE = 3600.0  # seconds for which the ingress may keep an idle connection
USUAL_LOAD, USUAL_WORK = 1.0, 0.01  # seconds of a load and of a request, of models that had none so far


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
    """One engine and its frontend, open at `host` and `port`. Create one with `start`, end it with `close`."""

    def __init__(
        self, engines: Engines, frontend: Frontend, host: str, settings: ServeConfig, ends: AsyncExitStack
    ) -> None:
        self.host = host
        self._engines = engines
        self._frontend = frontend
        self._ends = ends
        self._settings = settings
        self._before: Snapshot = {"models": {}}
        self._well = time.monotonic()

    @classmethod
    async def start(cls, application: Application, host: str) -> Self:
        """Start the engine and open the frontend. Raises what could not be loaded."""
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
            frontend = Frontend(
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
            )
            await stack.enter_async_context(frontend)
            return cls(engines, frontend, host, settings, stack.pop_all())

    @property
    def port(self) -> int:
        """The port of its frontend."""
        return self._frontend.port

    async def report(self) -> Report | None:
        """Return what the ingress places models and routes calls by; None unless memory is limited."""
        settings, deadlines = self._settings, self._engines.deadlines
        if not settings.residency.budget:
            return None
        snapshot = await self._engines.metrics()
        return report_of(snapshot, settings.engine.crew, {"": settings.server.deadline, **deadlines})

    async def load(self) -> Load:
        """Return the replica's load since the last call of this method."""
        before, self._before = self._before, await self._engines.metrics()
        return load_between(before, self._before, self._settings.engine.crew)

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


def report_of(snapshot: Mapping[str, Any], workers: int, deadlines: Mapping[str, float]) -> Report | None:
    """Return what a replica reports, from its engine's figures; None if its memory is not limited.

    `deadlines` are the default deadlines of models; that of "" is for those without one of their own. A model of which
    half is in memory counts as being there: the rest of it loads while that runs.
    """
    memory = snapshot.get("memory")
    if memory is None:
        return None
    costs: dict[str, Costs] = {}
    for name, about in memory["models"].items():
        if name not in snapshot["models"]:
            continue
        loads, model = about["load_seconds"], snapshot["models"][name]
        load = loads["sum"] / loads["count"] if loads["count"] else USUAL_LOAD
        answered = model["requests"]["answered"]
        work = sum(model["run_seconds"].values()) / answered if answered else USUAL_WORK
        costs[name] = Costs(about["bytes"], load, work / workers, deadlines.get(name, deadlines[""]))
    resident = frozenset(
        [
            name
            for name in costs
            if 2 * memory["models"][name]["resident_bytes"] >= max(1, memory["models"][name]["bytes"])
        ]
    )
    return Report(memory["budget_bytes"], costs, resident)


def _inside(config: FrontendConfig, host: str) -> FrontendConfig:
    """Return the configuration of a replica's frontend: any port, and nothing that the ingress handles."""
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
