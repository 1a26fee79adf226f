"""The gRPC door by gRPC's own server (`grpc.aio`), on a port of its own, drained before it closes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from latebind.domain.errors import ConfigError
from latebind.server.limits import Limits
from latebind.server.listening import TAKEN
from latebind.server.rpc.base_door import LAST_WORDS, BaseDoor
from latebind.server.rpc.messages import grpc
from latebind.server.rpc.reception import CallFailed, Reception
from latebind.server.rpc.routes import Answer, Method

QUIET_SECONDS = 0.1  # if no call arrives for so long while the door closes, none is expected any more
LOGGER = "grpc._cython.cygrpc"  # where the server writes what its handlers raise
MOST_PENDING = 1 << 20  # calls that wait for the event loop; limits on streams and connections bound them anyway


class OfficialDoor(BaseDoor):
    """The door whose calls gRPC's own server carries."""

    _server: Any = None

    async def open(self) -> None:
        """Listen; when this returns, calls are answered. Raises `ConfigError` if the address is not available."""
        logging.getLogger(LOGGER).addFilter(_is_news)
        self._server = grpc.aio.server(options=_options(self._limits), maximum_concurrent_rpcs=self._limits.calls)
        for method in self._methods.values():
            service, name = method.path[1:].split("/")
            self._server.add_registered_method_handlers(service, {name: self._handler(method)})
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        try:
            self.port = self._add_port(f"{host}:{self._config.grpc_port}")
        except RuntimeError:
            where = f"{self._config.host} port {self._config.grpc_port}"
            raise ConfigError(f"server.grpc_port: cannot listen on {where}: {TAKEN}") from None
        await self._server.start()

    def _add_port(self, address: str) -> int:
        """Listen there, with TLS if the configuration names a certificate; gRPC accepts no TLS below 1.2."""
        config = self._config
        if not config.tls_cert:
            return int(self._server.add_insecure_port(address))
        pair = (Path(config.tls_key).read_bytes(), Path(config.tls_cert).read_bytes())
        authority = Path(config.tls_client_ca).read_bytes() if config.tls_client_ca else None
        credentials = grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
        return int(self._server.add_secure_port(address, credentials))

    def _handler(self, method: Method) -> Any:
        """Return the handler that the server calls for a method."""
        if method.answer is None:
            return grpc.stream_stream_rpc_method_handler(_following(self.reception, method))
        return grpc.unary_unary_rpc_method_handler(_answering(self.reception, method, method.answer))

    async def _close(self) -> None:
        """Answer until no call is under way and no more arrive; while it stops, the server cancels calls that arrive.

        A client that has just had its last answer may call once more, and is told that the server shuts down.
        """
        await self.drain()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self.reception.quiet(QUIET_SECONDS)
        await self._server.stop(LAST_WORDS)


def _answering(reception: Reception, method: Method, answer: Answer) -> Callable[[bytes, Any], Awaitable[bytes]]:
    async def serve(data: bytes, context: Any) -> bytes:
        reception.hold(len(data))
        try:
            return await reception.answer(method, answer, data, _Caller(context))
        except CallFailed as failed:
            await _abort(context, failed)
            raise
        finally:
            reception.hold(-len(data))

    return serve


def _following(reception: Reception, method: Method) -> Callable[[Any, Any], Awaitable[None]]:
    async def serve(requests: Any, context: Any) -> None:
        del requests  # they are read by the context
        try:
            await reception.follow(method, _Caller(context))
        except CallFailed as failed:
            await _abort(context, failed)

    return serve


async def _abort(context: Any, failed: CallFailed) -> None:
    """End a call with a status; one that nobody waits for any more is cancelled, as gRPC itself soon will."""
    try:
        await context.abort(grpc.StatusCode[failed.status], failed.text)
    except grpc.aio.InternalError:
        raise asyncio.CancelledError from None


def _is_news(record: logging.LogRecord) -> bool:
    """Tell whether a record of gRPC's own log says more than that a client has gone.

    The server logs a traceback of `CancelledError` for a call that was cancelled before its task first ran.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError)


class _Caller:
    """The client's end of a call of the official server."""

    __slots__ = ("_context",)

    def __init__(self, context: Any) -> None:
        self._context = context

    def seconds(self) -> float | None:
        left: float | None = self._context.time_remaining()
        return left

    def address(self) -> str:
        """Return the address out of `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
        peer: str = self._context.peer()
        return peer.partition(":")[2].rpartition(":")[0]

    def header(self, name: str) -> str:
        return ", ".join([str(value) for key, value in self._context.invocation_metadata() if key == name])

    async def read(self) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, reply: bytes) -> None:
        """Send a response; one that nobody takes any more cancels the call, as gRPC itself soon will."""
        try:
            await self._context.write(reply)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None


def _options(limits: Limits) -> list[tuple[str, int]]:
    """Return the server's options; times are in milliseconds."""
    return [
        ("grpc.so_reuseport", 0),  # else a second server could start on the port and take half of the connections
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.header_bytes),
        ("grpc.absolute_max_metadata_size", limits.header_bytes),
        ("grpc.max_concurrent_streams", limits.calls),
        ("grpc.max_allowed_incoming_connections", limits.connections),
        ("grpc.server.max_pending_requests", MOST_PENDING),  # past 1000 it would cancel calls at random
        ("grpc.server.max_pending_requests_hard_limit", MOST_PENDING),
        ("grpc.server_handshake_timeout_ms", round(limits.idle_seconds * 1e3)),
        ("grpc.keepalive_time_ms", 60_000),  # to notice clients that went away silently
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients may ping as often
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
