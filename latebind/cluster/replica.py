"""A replica: the same frontend and engine as on a single machine. Only the ingress may call it."""

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from latebind.cluster.placement import Costs, Report
from latebind.cluster.rpc import replica_route
from latebind.cluster.scaling import load_between
from latebind.domain.config import FrontendConfig, ServeConfig
from latebind.domain.errors import Unavailable
from latebind.engine.cores import fitted
from latebind.forks.client import ForkServer
from latebind.program.metadata import read_texts
from latebind.repository.listing import Selection
from latebind.served import serving
from latebind.server.access import Guard, Security
from latebind.server.gateway import Snapshot
from latebind.server.limits import Limits
from latebind.server.rest.routes import ROUTES

ADDRESS, REPORT = "address", "report"  # in the metadata that Ray keeps of a replica, and in its statistics
PATIENCE = 30.0  # seconds without an engine after which the replica reports itself as unhealthy
IDLE = 3600.0  # seconds for which the ingress may keep an idle connection
USUAL_LOAD, USUAL_WORK = 1.0, 0.01  # seconds of a load and of a request, for models that had none so far


@dataclass(frozen=True, slots=True)
class Application:
    """What is served, and how: the options of `latebind serve`. Ingress and replicas share `secret`.

    On the machine of the `lender`, engines are forked from its process, which has imported everything already. Settings
    of the engine that are not in `explicit` are chosen for the cores of each replica.
    """

    selection: Selection
    settings: ServeConfig
    secret: str
    lender: Path | None = None
    explicit: tuple[str, ...] = ()


class Replica:
    """One engine and its frontend. Ray asks it by these names (`deployments.py`)."""

    async def open(self, application: Application, host: str) -> None:
        """Start the engine and open the frontend. Raises what could not be loaded."""
        server, first = application.settings.server, application.selection.first()
        texts = read_texts(list(first.models.values()))
        settings = fitted(application.settings, application.explicit, texts=texts, on="ray")
        # Any port, and nothing that the ingress handles.
        inside = FrontendConfig(
            host=host,
            port=0,
            deadline=server.deadline,
            show_exit=server.show_exit,
            shared_memory=server.shared_memory,
            manage=server.manage,
            dashboard=False,
        )
        async with AsyncExitStack() as stack:
            forks = stack.enter_context(ForkServer(application.lender))
            self._engines, _, made = await stack.enter_async_context(
                serving(application.selection, first, settings, forks)
            )
            frontend = made(
                inside,
                limits=replace(Limits.by(server), idle_seconds=IDLE),
                routes=(*ROUTES, replica_route()),
                security=Security(Guard(token=application.secret), tls=None),
            )
            await stack.enter_async_context(frontend)
            self._address = host, frontend.port
            self._settings = settings
            self._before: Snapshot = {"models": {}}
            self._well = time.monotonic()
            self._ends = stack.pop_all()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Report once, at the start, where the ingress finds the frontend: host and port."""
        return {ADDRESS: self._address}

    async def record_routing_stats(self) -> dict[str, Report | None]:
        """Report, every second, the figures for placing and routing; None unless memory is limited."""
        settings, deadlines = self._settings, self._engines.deadlines
        if not settings.residency.budget:
            return {REPORT: None}
        snapshot = await self._engines.metrics()
        return {REPORT: report_of(snapshot, settings.engine.worker_count, {"": settings.server.deadline, **deadlines})}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report, every second, the load since the last time, as the fields of `Load`."""
        before, self._before = self._before, await self._engines.metrics()
        return load_between(before, self._before, self._settings.engine.worker_count)._asdict()

    async def check_health(self) -> None:
        """Raise `Unavailable` if there has been no engine for long; one that died is usually replaced at once."""
        now = time.monotonic()
        if self._engines.ready():
            self._well = now
        if now - self._well > PATIENCE:
            raise Unavailable(f"no engine has come up for {PATIENCE:g} s")

    async def close(self) -> None:
        """Answer the calls under way, then end the engine."""
        await self._ends.aclose()


def report_of(snapshot: Mapping[str, Any], workers: int, deadlines: Mapping[str, float]) -> Report | None:
    """Return what a replica reports, from its engine's figures; None if its memory is not limited.

    `deadlines` are the default deadlines of models; that of "" is for those without one of their own. A model that is
    half in memory counts as being there: the rest loads while that runs.
    """
    memory = snapshot.get("memory")
    if memory is None:
        return None
    costs, resident = {}, set()
    for name, about in memory["models"].items():
        model = snapshot["models"].get(name)
        if model is None:
            continue
        loads, answered = about["load_seconds"], model["requests"]["answered"]
        load = loads["sum"] / loads["count"] if loads["count"] else USUAL_LOAD
        work = sum(model["run_seconds"].values()) / answered if answered else USUAL_WORK
        costs[name] = Costs(about["bytes"], load, work / workers, deadlines.get(name, deadlines[""]))
        if 2 * about["resident_bytes"] >= max(1, about["bytes"]):
            resident.add(name)
    return Report(memory["budget_bytes"], costs, frozenset(resident))
