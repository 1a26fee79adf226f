"""The frontend: the HTTP application on its own socket, drained before it closes.

Where gRPC is configured, the server of `rpc/server.py` opens and closes with it.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from latebind.domain.config import FrontendConfig
from latebind.prompt import be_prompt, be_usual
from latebind.server.access import Security
from latebind.server.dashboard import Dashboard
from latebind.server.gateway import Catalogue, Gateway, Observer
from latebind.server.limits import Limits
from latebind.server.listening import listen, listen_at, remove
from latebind.server.rest.app import RestApp
from latebind.server.rest.openapi import Route
from latebind.server.rest.routes import ROUTES
from latebind.server.service import Service
from latebind.server.shared_memory import Regions
from latebind.server.tracing import TracedCall

if TYPE_CHECKING:
    from latebind.server.rpc.server import RpcServer
    from latebind.server.rpc.verbs import Method


class Frontend:
    """Serves `gateway` over HTTP while it is open::

        async with Frontend(gateway, config) as frontend:
            frontend.close_on_signals()
            print(frontend.port)
            await frontend.closed()

    Open it on the event loop that the gateway belongs to. `deadlines` are the default deadlines of models, in seconds;
    `observer` sees every answer; `catalogue` knows the models that are not served, too. A share `trace_rate` of all
    calls is traced, and `export` gets each of those. `routes` over HTTP and `methods` over gRPC, by path, take the
    place of those that answer from the gateway, `security` that of the tokens and certificates in files. `forced` is
    whether a second signal has asked it to close without waiting. Raises `ConfigError` for tokens and certificates
    that cannot be used.
    """

    def __init__(
        self,
        gateway: Gateway,
        config: FrontendConfig | None = None,
        *,
        limits: Limits | None = None,
        deadlines: Mapping[str, float] | None = None,
        observer: Observer | None = None,
        trace_rate: float = 0.0,
        export: Callable[[TracedCall], None] | None = None,
        catalogue: Catalogue | None = None,
        routes: Sequence[Route] = ROUTES,
        methods: "Mapping[str, Method] | None" = None,
        security: Security | None = None,
    ) -> None:
        self._config = config or FrontendConfig()
        self._limits = limits or Limits.by(self._config)
        self._service = Service(
            gateway,
            deadline=self._config.deadline,
            deadlines=deadlines,
            limits=self._limits,
            show_exit=self._config.show_exit,
            observer=observer,
            trace_rate=trace_rate,
            export=export,
            regions=Regions(self._config.shared_memory, self._limits),
            catalogue=catalogue,
            manage=self._config.manage,
            split_by=self._config.split_by,
        )
        security = security or Security.by(self._config)
        self._app = RestApp(
            self._service,
            self._limits,
            self._config,
            security.guard,
            dashboard=Dashboard(self._service) if self._config.shows_dashboard else None,
            routes=routes,
            tls=security.tls,
        )
        self._rpc: RpcServer | None = None
        if self._config.grpc_port is not None:  # raises `ConfigError` if its packages are not installed
            from latebind.server.rpc import server as rpc  # noqa: PLC0415  (optional dependencies)

            self._rpc = rpc.RpcServer(self._service, self._config, self._limits, security, methods)
        self._socket: socket.socket | None = None
        self._closing_began = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self.forced = False

    @property
    def port(self) -> int:
        """The port it listens on, once open; 0 on a Unix socket."""
        assert self._socket is not None, "the frontend is not open"
        port: int = 0 if self._config.unix else self._socket.getsockname()[1]
        return port

    @property
    def grpc_port(self) -> int | None:
        """The port on which it speaks gRPC, once open; None where it does not."""
        return None if self._rpc is None else self._rpc.port

    async def open(self) -> None:
        """Listen; when this returns, requests are answered. Raises `ConfigError` if the address is not available."""
        unix = self._config.unix
        self._socket = listen_at(unix) if unix else listen(self._config.host, self._config.port)
        self._inode = os.lstat(unix).st_ino if unix else 0
        be_prompt()
        try:
            if self._rpc is not None:
                await self._rpc.open()
        except BaseException:
            self._socket.close()
            self._remove()
            raise
        await self._app.open(self._socket)

    def close(self) -> None:
        """Begin to close: refuse new calls; calls under way get `Limits.drain_seconds` to end. Await `closed()`."""
        self._service.drain()
        if self._closing is None:
            self._closing = asyncio.create_task(self._app.close())
            self._closing_began.set()
        if self._rpc is not None:
            self._rpc.close()

    def close_on_signals(self) -> None:
        """From now on, close on SIGINT and SIGTERM, and at once on a second one. Only in the main thread."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        self.forced = self._closing is not None
        self.close()
        if self.forced:
            self._app.forced = True
            if self._rpc is not None:
                self._rpc.give_up()

    async def closed(self) -> None:
        """Return when the frontend is closed and everything under way has ended."""
        await self._closing_began.wait()
        assert self._closing is not None
        await self._closing
        self._remove()
        if self._rpc is not None and not self.forced:
            await self._rpc.closed()
        await self._service.close()
        be_usual()

    def _remove(self) -> None:
        """Leave no Unix socket behind."""
        if self._config.unix:
            remove(self._config.unix, self._inode)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        await self.closed()
