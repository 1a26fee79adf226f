"""A cluster that is real but small: an ingress, and frontends with arithmetic behind them, in one process, no Ray."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from latebind.cluster.fleet import Fleet
from latebind.cluster.ingress import Ingress
from latebind.cluster.placement import Costs, Report
from latebind.cluster.replica import Application
from latebind.cluster.routing import Router
from latebind.cluster.rpc import replica_route
from latebind.cluster.upstream import ReplicaInfo
from latebind.domain.config import ClusterConfig, FrontendConfig, ServeConfig
from latebind.repository.listing import Selection
from latebind.server.access import Guard, Security
from latebind.server.frontend import Frontend
from latebind.server.limits import Limits
from latebind.server.rest.routes import ROUTES
from tests.server.arithmetic import Arithmetic
from tests.server.conftest import PATIENCE, Response, Site
from tests.server.shelf import Shelf

SECRET = "what-the-ingress-shows"
SERVER = FrontendConfig(port=0, grpc_port=0, manage=True)
CLUSTER = ClusterConfig()

T = TypeVar("T")


class Dead:
    """A replica that has died without anybody's having noticed: it closes each connection once it has read of it.

    A `dying` one takes calls and answers none, until it is `told` to die.
    """

    def __init__(self, *, dying: bool = False) -> None:
        self.called = 0
        self.told = asyncio.Event()
        if not dying:
            self.told.set()

    async def open(self) -> ReplicaInfo:
        self._server = await asyncio.start_server(self._hang_up, "127.0.0.1", 0)
        return ReplicaInfo("dead", "127.0.0.1", self._server.sockets[0].getsockname()[1])

    async def _hang_up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.called += bool(await reader.read(1))
        await self.told.wait()
        writer.transport.abort()


@dataclass(frozen=True)
class Small:
    """The cluster: its `ingress` as a site to call, and what is behind."""

    ingress: Site
    fleet: Fleet
    gateways: Sequence[Arithmetic]
    shelves: Sequence[Shelf]
    seen: list[ReplicaInfo]  # what Ray would tell
    grpc: str
    loop: asyncio.AbstractEventLoop

    def call(self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None) -> Response:
        return self.ingress.call(method, path, body, headers)

    def do(self, work: Callable[[], T]) -> T:
        """Do something on the cluster's event loop."""

        async def wrapped() -> T:
            return work()

        return asyncio.run_coroutine_threadsafe(wrapped(), self.loop).result(PATIENCE)

    def wait(self, event: asyncio.Event) -> None:
        """Return when an event of a replica is set. Raises `TimeoutError` if that takes too long."""
        asyncio.run_coroutine_threadsafe(event.wait(), self.loop).result(PATIENCE)

    def home(self, model: str, replica: str) -> None:
        """Have a model lie in the memory of one replica alone, as far as the ingress is told."""
        costs = {model: Costs(1.0, 1.0, 0.1, 1.0)}

        def tell() -> None:
            for place, each in enumerate(self.seen):
                resident = (model,) if each.name == replica else ()
                self.seen[place] = replace(each, report=Report(1.0, costs, resident))
            self.fleet.router = Router(most=CLUSTER.calls)  # which has placed nothing yet
            self.fleet.see(self.seen)

        self.do(tell)


def until(condition: Callable[[], object], *, seconds: float = 60.0, pause: float = 0.01) -> None:
    """Wait until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to be so"
        time.sleep(pause)


@contextmanager
def small(
    replicas: int = 2,
    *,
    server: FrontendConfig = SERVER,
    cluster: ClusterConfig = CLUSTER,
    dead: Dead | None = None,
    limits: Limits | None = None,
) -> Iterator[Small]:
    """Open such a cluster for as long as the block lasts."""
    started: Future[tuple[Small, asyncio.Event]] = Future()
    settings = ServeConfig(server=server, cluster=cluster)
    thread = threading.Thread(target=lambda: uvloop.run(_serve(replicas, settings, dead, limits, started)), daemon=True)
    thread.start()
    found, ended = started.result(PATIENCE)
    try:
        yield found
    finally:
        found.loop.call_soon_threadsafe(ended.set)
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the cluster did not end"


async def _serve(
    replicas: int, settings: ServeConfig, dead: Dead | None, limits: Limits | None, started: Future[Any]
) -> None:
    ended = asyncio.Event()
    async with AsyncExitStack() as stack:
        gateways = [Arithmetic() for _ in range(replicas)]
        shelves = [Shelf(gateway) for gateway in gateways]
        nobodys = Arithmetic()  # a site has one
        seen = [await dead.open()] if dead is not None else []
        for number, (gateway, shelf) in enumerate(zip(gateways, shelves, strict=True)):
            frontend = Frontend(
                gateway,
                FrontendConfig(port=0, manage=True),
                catalogue=shelf,
                routes=(*ROUTES, replica_route()),
                security=Security(Guard(token=SECRET), tls=None),
            )
            await stack.enter_async_context(frontend)
            seen.append(ReplicaInfo(f"replica-{number}", "127.0.0.1", frontend.port))

        async def look(on_reply: Callable[[Sequence[ReplicaInfo]], None]) -> None:
            on_reply(seen)

        application = Application(Selection(Path()), settings, SECRET)
        ingress = Ingress()
        await ingress.open(application, look, limits=limits)
        stack.push_async_callback(ingress.close)
        loop = asyncio.get_running_loop()
        port, grpc_port = await ingress.ports()
        site = Site(ingress.frontend, nobodys, loop, port, Shelf(nobodys))
        started.set_result((Small(site, ingress.fleet, gateways, shelves, seen, f"127.0.0.1:{grpc_port}", loop), ended))
        await ended.wait()
