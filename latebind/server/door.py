"""The door: uvicorn's server around the HTTP application, on a socket of its own, drained before it closes.

Where gRPC is configured, the server of `rpc/server.py` opens and closes with it.
"""

import asyncio
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import uvicorn

from latebind.domain.config import DoorConfig
from latebind.prompt import be_prompt, be_usual
from latebind.server.access import Guard, Security
from latebind.server.dashboard.dashboard import Dashboard
from latebind.server.gateway import Catalogue, Gateway, Observer
from latebind.server.limits import Limits
from latebind.server.listening import BACKLOG, listen, waiting_at
from latebind.server.rest.app import PAGE, ROUTES, Doorkeeper, RestApp, Route
from latebind.server.rest.protocol import Connected, HttpProtocol, Sweeper
from latebind.server.service import Service
from latebind.server.shared_memory import Regions
from latebind.server.tls import LATE_SECONDS, TlsServer
from latebind.server.tracing import TracedCall

if TYPE_CHECKING:
    from latebind.server.rpc.server import RpcServer
    from latebind.server.rpc.verbs import Method


@dataclass(frozen=True, slots=True)
class Verbs:
    """What a door answers: HTTP routes, and gRPC methods by path (None: the usual)."""

    routes: Sequence[Route] = (*ROUTES, *PAGE)
    methods: "Mapping[str, Method] | None" = None


class Door:
    """Serves `gateway` over HTTP while it is open::

        async with Door(gateway, config) as door:
            door.close_on_signals()
            print(door.port)
            await door.closed()

    Open it on the event loop that the gateway belongs to. `deadlines` are the default deadlines of models, in seconds;
    `observer` hears of every answer; `catalogue` knows what there is beside what is served. A share `trace_rate` of all
    calls is traced, and `export` hears of those that are. `verbs` take the place of those that answer from the gateway,
    and `security` that of the tokens and certificates in files. It listens at the Unix socket `local` too, where one is
    named. `hurried` is whether it was told to close more than once, so that nothing is waited for. Raises `ConfigError`
    for tokens and certificates that cannot be used.
    """

    def __init__(
        self,
        gateway: Gateway,
        config: DoorConfig | None = None,
        *,
        limits: Limits | None = None,
        deadlines: Mapping[str, float] | None = None,
        observer: Observer | None = None,
        trace_rate: float = 0.0,
        export: Callable[[TracedCall], None] | None = None,
        catalogue: Catalogue | None = None,
        verbs: "Verbs | None" = None,
        security: Security | None = None,
        local: str = "",
    ) -> None:
        self._config = config or DoorConfig()
        self._limits = limits or Limits()
        self._service = Service(
            gateway,
            deadline=self._config.deadline,
            deadlines=deadlines,
            longest=self._limits.deadline,
            show_exit=self._config.show_exit,
            observer=observer,
            trace_rate=trace_rate,
            export=export,
            regions=Regions(self._config.shared_memory, self._limits),
            catalogue=catalogue,
            manage=self._config.manage,
        )
        verbs, security = verbs or Verbs(), security or Security.by(self._config)
        self._dashboard = Dashboard(self._service) if self._config.shows_dashboard else None
        doorkeeper = Doorkeeper(self._config, security.guard)
        self._app = app = RestApp(
            self._service,
            self._limits,
            doorkeeper,
            self._dashboard,
            routes=verbs.routes,
            behind_ingress=security.behind_ingress,
        )
        self._server = _Server(_uvicorn_config(app, self._limits), self._limits, security.tls)
        self._rpc = _rpc_server(self._service, self._config, self._limits, security.guard, verbs.methods)
        self.local = local
        self._socket: socket.socket | None = None
        self._serving: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self.hurried = False

    @property
    def port(self) -> int:
        """The port it listens on, once open."""
        assert self._socket is not None, "the door is not open"
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def grpc_port(self) -> int | None:
        """The port on which it speaks gRPC, once open; None where it does not."""
        return None if self._rpc is None else self._rpc.port

    async def open(self) -> None:
        """Listen; when this returns, requests are answered. Raises `ConfigError` if the address is not available."""
        self._socket = listen(self._config.host, self._config.port)
        be_prompt()
        if self._rpc is not None:
            await self._open_rpc(self._rpc)
        self._serving = asyncio.create_task(self._server.serve(sockets=[self._socket]))
        connections = cast(set[Connected], self._server.server_state.connections)
        self._sweeping = asyncio.create_task(Sweeper(self._limits.idle_seconds).run(connections))
        opened = asyncio.create_task(self._server.opened.wait())
        await asyncio.wait((opened, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            opened.cancel()
            await self._serving
        if self.local:
            await self._server.listen_at(self.local)

    def close(self) -> None:
        """Begin to close: refuse new calls; calls under way get `Limits.drain_seconds` to end. Await `closed()`."""
        self._service.drain()
        self._server.should_exit = True
        if self._rpc is not None:
            self._rpc.close()

    def close_on_signals(self) -> None:
        """From now on, close on SIGINT and SIGTERM, and at once on a second one. Only in the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._hear_signal)

    def _hear_signal(self) -> None:
        self.hurried = self._server.should_exit
        self._server.force_exit = self.hurried
        self.close()
        if self.hurried and self._rpc is not None:
            self._rpc.hurry()

    async def closed(self) -> None:
        """Return when the door is closed and everything under way has ended."""
        assert self._serving is not None, "the door is not open"
        await self._serving
        if self._dashboard is not None:
            await self._dashboard.close()
        if self._sweeping is not None:
            self._sweeping.cancel()
        cancelled = self._server.server_state.tasks  # calls that the drain had no time for: each still sends its error
        if cancelled and not self.hurried:
            await asyncio.wait(cancelled, timeout=1.0)
        if self._rpc is not None and not self.hurried:
            await self._rpc.closed()
        await self._service.close()
        be_usual()

    async def _open_rpc(self, rpc: "RpcServer") -> None:
        """Open the gRPC door too; if that fails, close this one and raise."""
        try:
            await rpc.open()
        except BaseException:
            assert self._socket is not None, "the door is not open"
            self._socket.close()
            raise

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self.closed()


class _Server(uvicorn.Server):
    """uvicorn's server, which also says when it is open, and leaves signals to whoever owns the process."""

    def __init__(self, config: uvicorn.Config, limits: Limits, tls: ssl.SSLContext | None) -> None:
        super().__init__(config)
        self.opened = asyncio.Event()
        self._limits = limits
        self._tls = tls
        self._behind_tls: TlsServer | None = None

    async def listen_at(self, local: str) -> None:
        """Also listen at a Unix socket; call it once the server is open."""
        loop = asyncio.get_running_loop()
        self.servers.append(await loop.create_unix_server(self._protocol(), local, backlog=BACKLOG))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close, but first serve connections that the kernel accepted and nobody here did: they would be reset."""
        come = [one for listening in sockets or () for one in waiting_at(listening)]
        for server in self.servers:
            server.close()
        if self._behind_tls is None:
            await asyncio.gather(*map(self._take, come), return_exceptions=True)
        else:
            self._behind_tls.close()
            for line in come:
                self._behind_tls.take(line)
            await self._behind_tls.ended(seconds=LATE_SECONDS)
        await super().shutdown(sockets)

    async def _take(self, line: socket.socket) -> None:
        """Serve a connection that was accepted by hand."""
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol(), line)

    def _protocol(self) -> Callable[[], asyncio.Protocol]:
        """Return the factory of the protocol that serves a connection."""
        made = cast(Any, self.config.http_protocol_class)
        return partial(made, self.config, self.server_state, self.lifespan.state)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._tls is None:
            await super().startup(sockets)
        else:
            assert sockets is not None, "a door listens at a socket of its own"
            (listening,) = sockets
            await super().startup([])
            self._behind_tls = TlsServer(
                *(listening, self._tls, self._protocol(), self.server_state.connections),
                most=self._limits.connections,
                patience=self._limits.idle_seconds,
            )
        self.opened.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none: uvicorn would raise them again after the drain, and the exit code would not be 0."""
        yield


def _rpc_server(
    service: Service, config: DoorConfig, limits: Limits, guard: Guard, methods: "Mapping[str, Method] | None"
) -> "RpcServer | None":
    """Return the gRPC server if one is configured. Raises `ConfigError` if its packages are not installed."""
    if config.grpc_port is None:
        return None
    from latebind.server.rpc.server import RpcServer  # noqa: PLC0415  (optional dependencies)

    return RpcServer(service, config, limits, guard, methods)


def _uvicorn_config(app: RestApp, limits: Limits) -> uvicorn.Config:
    protocol: Any = partial(HttpProtocol, answer=app, limits=limits, replies=app.replies)
    config = uvicorn.Config(
        app,
        http=protocol,
        ws="none",
        interface="asgi3",
        lifespan="off",
        log_config=None,
        log_level="error",  # any client can cause the warnings
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=limits.drain_seconds,
    )
    config.load()
    return config
