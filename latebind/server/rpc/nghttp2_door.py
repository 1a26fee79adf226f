"""The gRPC door by nghttp2: HTTP/2 on the door's own event loop, with no other thread between socket and verb.

Used like `rpc/official_door.py`, which has the official server.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, cast

from latebind.server.limits import BodyTimeout, Limits
from latebind.server.listening import BACKLOG, listen
from latebind.server.rpc.base_door import LAST_WORDS, BaseDoor, DoorSetup
from latebind.server.rpc.exchange import Exchange, too_many
from latebind.server.rpc.nghttp2 import (
    INITIAL_WINDOW_SIZE,
    MAX_CONCURRENT_STREAMS,
    MAX_HEADER_LIST_SIZE,
    NO_ERROR,
    Block,
    Library,
)
from latebind.server.tls import TlsServer, server_context

STREAM_WINDOW, CONNECTION_WINDOW = 1 << 20, 16 << 20  # bytes that a client may send ahead
PREFACE = 33  # bytes that every HTTP/2 client sends first
SWEEP_SECONDS = 1.0


class Nghttp2Door(BaseDoor):
    """The door whose calls nghttp2 carries. Raises `ConfigError` if that library is not installed."""

    def __init__(self, setup: DoorSetup) -> None:
        super().__init__(setup)
        self.library = Library()
        self.methods = {path.encode(): method for path, method in self._methods.items()}
        self.connections: set[Connection] = set()
        self.calls = 0
        self._server: asyncio.Server | TlsServer | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Listen; when this returns, calls are answered. Raises `ConfigError` if the address is not available."""
        config, context = self._config, server_context(self._config)
        if context is not None:
            context.set_alpn_protocols(["h2"])
        assert config.grpc_port is not None, "the configuration has no port for gRPC"
        listening = listen(config.host, config.grpc_port, "server.grpc_port")
        made: Callable[[], asyncio.Protocol] = partial(Connection, self, self._limits)
        self.port = listening.getsockname()[1]
        if context is None:
            self._server = await asyncio.get_running_loop().create_server(made, sock=listening, backlog=BACKLOG)
        else:
            most, patience = self._limits.connections, self._limits.idle_seconds
            self._server = TlsServer(listening, context, made, self.connections, most=most, patience=patience)
        self._sweeping = asyncio.create_task(self._sweep())

    async def _close(self) -> None:
        assert self._server is not None, "the door is not open"
        assert self._sweeping is not None, "the door is not open"
        self._server.close()
        await self.drain()
        await self.reception.emptied(LAST_WORDS)
        self._sweeping.cancel()
        if isinstance(self._server, TlsServer):
            await self._server.ended()
        for connection in list(self.connections):
            connection.terminate()
        end = time.monotonic() + LAST_WORDS
        while self.connections and time.monotonic() < end:
            await asyncio.sleep(0.01)
        for connection in list(self.connections):
            connection.abort()

    async def _sweep(self) -> None:
        """Close connections of silent clients, and fail requests that do not arrive in time."""
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._limits.idle_seconds / 4))
            now = time.monotonic()
            for connection in list(self.connections):
                connection.sweep(now)


class Connection(asyncio.Protocol):
    """One client's connection: its HTTP/2 session, and an exchange for each open stream."""

    def __init__(self, door: Nghttp2Door, limits: Limits) -> None:
        self.address = ""
        self._door = door
        self._limits = limits
        self._exchanges: dict[int, Exchange] = {}
        self._resets: list[int] = []
        self._incoming: Exchange | None = None
        self._header_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._flushing = False
        self._paused = False
        self._made = time.monotonic()
        self._received = 0  # bytes so far
        self._last_heard = self._received, self._made  # at the last sweep: bytes so far, and when the last of them came
        self._pinged = inf  # when a silent client was pinged

    # The transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)
        door, limits = self._door, self._limits
        peer: Any = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else ""
        settings = (
            (MAX_CONCURRENT_STREAMS, limits.calls),
            (INITIAL_WINDOW_SIZE, STREAM_WINDOW),
            (MAX_HEADER_LIST_SIZE, limits.header_bytes),
        )
        self._session = door.library.open(self, settings, window=CONNECTION_WINDOW)
        door.connections.add(self)
        if len(door.connections) > limits.connections:
            self._transport.abort()
        self._flush_soon()

    def data_received(self, data: bytes) -> None:
        """Pass the bytes to the session."""
        if self._session.receive(data):
            self._received += len(data)
            self._flush_soon()
        else:
            self._flush()
            self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls of this client."""
        del exc
        self._door.connections.discard(self)
        for stream in list(self._exchanges):
            self.closed(stream)
        self._session.close()
        self._flushing = True  # and stays so: there is nobody to send to

    def pause_writing(self) -> None:
        """The client takes no more bytes at the moment."""
        self._paused = True

    def resume_writing(self) -> None:
        """The client takes bytes again."""
        self._paused = False
        self._flush_soon()

    def terminate(self) -> None:
        """Send what is left, announce the end and close."""
        self._flush()
        self._session.terminate()
        self._flush_soon()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def sweep(self, now: float) -> None:
        """Close a connection that does not speak HTTP/2 or is silent; fail requests that do not arrive in time."""
        limits = self._limits
        if self._received != self._last_heard[0]:
            self._last_heard, self._pinged = (self._received, now), inf
        begun = self._made if self._received < PREFACE else self._pinged
        if now - begun > limits.idle_seconds:
            self._transport.abort()
        elif self._pinged == inf and now - self._last_heard[1] > limits.silent_seconds:
            self._pinged = now
            self._session.ping()
            self._flush_soon()
        for exchange in list(self._exchanges.values()):
            if exchange.is_late(now, self._limits.body_seconds):
                exchange.fail(BodyTimeout(f"the request did not arrive within {self._limits.body_seconds:g} s"))

    # The session: events

    def begun(self, stream: int) -> None:
        """Begin the headers of a stream; trailers of an open stream are ignored."""
        self._header_bytes = 0
        self._incoming = None
        if stream not in self._exchanges:
            self._incoming = Exchange(self, stream, self._door.reception, self._limits.body_bytes)
            self._exchanges[stream] = self._incoming
            self._door.calls += 1

    def header(self, name: bytes, value: bytes) -> bool:
        """Take one header; False if they are too large together."""
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > self._limits.header_bytes:
            return False
        if self._incoming is not None:
            headers = self._incoming.headers
            headers[name] = b"%b, %b" % (headers[name], value) if name in headers else value
        return True

    def headed(self, stream: int) -> None:
        """Begin the call: its headers are complete."""
        exchange, self._incoming = self._incoming, None
        if exchange is None:
            return
        if self._door.calls > self._limits.calls:
            exchange.fail(too_many(self._limits.calls))
        else:
            exchange.begin(self._door.methods)

    def chunk(self, stream: int, data: bytes) -> None:
        """Pass data to the call, if it is still there."""
        exchange = self._exchanges.get(stream)
        if exchange is None:
            self.consumed(stream, len(data))
        else:
            exchange.feed(data)

    def ended(self, stream: int) -> None:
        """The client sends no more."""
        exchange = self._exchanges.get(stream)
        if exchange is not None:
            exchange.end()

    def closed(self, stream: int) -> None:
        """Forget a stream that is closed."""
        exchange = self._exchanges.pop(stream, None)
        if exchange is not None:
            self._door.calls -= 1
            exchange.close()

    def read(self, stream: int, most: int) -> tuple[bytes, Block | None] | None:
        """Return the next bytes that a call sends."""
        exchange = self._exchanges.get(stream)
        return None if exchange is None else exchange.take(most)

    # What calls ask

    def respond(self, stream: int, head: Block, *, data: bool) -> None:
        """Answer with these headers."""
        if stream in self._exchanges:
            self._session.respond(stream, head, data=data)
            self._flush_soon()

    def resume(self, stream: int) -> None:
        """Send the data of a call that has some again."""
        if stream in self._exchanges:
            self._session.resume(stream)
            self._flush_soon()

    def reset(self, stream: int) -> None:
        """Reset a stream after what it has was sent; nghttp2 would drop that otherwise."""
        self._resets.append(stream)
        self._flush_soon()

    def consumed(self, stream: int, size: int) -> None:
        """Let the client send `size` bytes more."""
        self._session.consume(stream, size)
        self._flush_soon()

    def _reset(self) -> bytes:
        """Return the bytes that reset the streams waiting for it."""
        for stream in self._resets:
            if stream in self._exchanges:
                self._session.reset(stream, NO_ERROR)
        self._resets.clear()
        return self._session.to_send()

    def _flush_soon(self) -> None:
        if not (self._flushing or self._paused):
            self._flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Send everything that accumulated in one turn of the event loop."""
        if self not in self._door.connections:
            return
        self._flushing = False
        data = self._session.to_send()
        if self._resets:
            data += self._reset()
        if data:
            self._transport.write(data)
        if self._session.is_over():
            self._transport.close()
