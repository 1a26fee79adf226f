"""gRPC's own server (`grpc.aio`) on its own port: a call is counted, admitted, and ends with one answer or status.

It handles HTTP/2, TLS, deadlines and flow control, and passes a message on once it is read completely. A server of our
own on nghttp2 answered 2.2 to 2.6 times as many calls of a model without work from 16 clients, in 850 lines and with a
system library. gRPC's synchronous server takes as long as this one, grpclib and hypercorn longer.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from latebind.domain.config import FrontendConfig
from latebind.domain.errors import ConfigError, InvalidRequest, Refused, Unavailable
from latebind.server.access import Access, Security
from latebind.server.limits import Limits
from latebind.server.listening import TAKEN
from latebind.server.rpc.infer import Caller, Context, status_and_message
from latebind.server.rpc.messages import grpc
from latebind.server.rpc.verbs import Method, Stream, methods
from latebind.server.service import Service
from latebind.server.tls import Certificates, Loaded

LAST_WORDS = 1.0  # seconds to send errors to calls that the drain had no time for
QUIET_SECONDS = 0.1  # if no call arrives for so long while the server closes, none is expected any more
LOGGER = "grpc._cython.cygrpc"  # where the server writes what its handlers raise
# gRPC's own thread notifies the event loop three times for a call, and each time waits for a busy loop to release the
# interpreter: with Python's 5 milliseconds, 16 clients got 0.6 times as many answers of a model without work.
SWITCH_SECONDS = 1e-4
MOST_PENDING = 1 << 20  # calls that wait for the event loop; limits on streams and connections bound them anyway


class RpcServer:
    """Speaks gRPC while it is open. It serves `served` (by path) or, where that is None, the verbs of `service`.

    It is used like `Frontend`, which may have one. Open it on the event loop that the service belongs to.
    """

    def __init__(
        self,
        service: Service,
        config: FrontendConfig,
        limits: Limits,
        security: Security,
        served: Mapping[str, Method] | None = None,
    ) -> None:
        self.port = 0
        self._context = Context(service, limits)
        self._config = config
        self._limits = limits
        self._guard, self._tls = security.guard, security.tls
        self._asks = frozenset([access for access in Access if self._guard.asks(access)])
        self._methods = served or methods()
        self._server: Any = None
        self._arrived = asyncio.Event()  # set by each call
        self._under_way: set[asyncio.Task[Any]] = set()
        self._streams: set[Stream] = set()
        self._bytes = 0
        self._over = False
        self._closing: asyncio.Task[None] | None = None
        self._usual_switch = sys.getswitchinterval()

    async def open(self) -> None:
        """Listen; when this returns, calls are answered. Raises `ConfigError` if the address is not available."""
        logging.getLogger(LOGGER).addFilter(_is_news)
        # Not with `maximum_concurrent_rpcs`, which costs a tenth of a millisecond a call: they are counted here.
        self._server = grpc.aio.server(options=_options(self._limits))
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
        sys.setswitchinterval(SWITCH_SECONDS)

    def close(self) -> None:
        """Begin to close: refuse new calls; calls under way get `Limits.drain_seconds` to end. Await `closed()`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    async def closed(self) -> None:
        """Return when the server is closed and everything under way has ended."""
        assert self._closing is not None, "the server was not closed"
        await self._closing

    def give_up(self) -> None:
        """Fail all calls that are still under way: there is no time left."""
        self._over = True
        for task in self._under_way:
            task.cancel()

    def _add_port(self, address: str) -> int:
        """Listen there, behind TLS where there are certificates; gRPC accepts none below 1.2."""
        if self._tls is None:
            return int(self._server.add_insecure_port(address))
        current = _Current(self._tls)
        first = current.given
        credentials = grpc.dynamic_ssl_server_credentials(_configuration(first), current, first.authority is not None)
        return int(self._server.add_secure_port(address, credentials))

    async def _close(self) -> None:
        """Answer until no call is under way and no more arrive; while it stops, the server cancels calls that arrive.

        Streams end soon; single calls are still passed on, and the service itself refuses them. A client that has just
        had its last answer may call once more, and learns that the server shuts down.
        """
        for stream in self._streams:
            stream.end()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._limits.drain_seconds):
                while self._under_way:
                    await asyncio.wait(self._under_way)
        self.give_up()
        with suppress(TimeoutError):
            async with asyncio.timeout(LAST_WORDS):
                await self._quiet()
        await self._server.stop(LAST_WORDS)
        sys.setswitchinterval(self._usual_switch)

    async def _quiet(self) -> None:
        """Return when no call has arrived for `QUIET_SECONDS`."""
        with suppress(TimeoutError):
            while True:
                self._arrived.clear()
                async with asyncio.timeout(QUIET_SECONDS):
                    await self._arrived.wait()

    # Calls ------------------------------------------------------------------------------------------------------------

    def _handler(self, method: Method) -> Any:
        """Return the handler that gRPC's server calls for a method."""
        answer = method.answer
        if answer is None:

            async def follow(requests: Any, context: Any) -> None:
                del requests  # they are read by the context
                await self._serve(method, context, 0, partial(self._follow, method))

            return grpc.stream_stream_rpc_method_handler(follow)

        async def serve(data: bytes, context: Any) -> Any:
            return await self._serve(method, context, len(data), partial(answer, self._context, data))

        return grpc.unary_unary_rpc_method_handler(serve)

    async def _serve(
        self, method: Method, context: Any, size: int, verb: Callable[[Caller], Awaitable[bytes | None]]
    ) -> Any:
        """Count a call of `size` bytes as under way, admit and answer it; if that fails, it ends with a status."""
        task = asyncio.current_task()
        assert task is not None
        self._arrived.set()
        self._under_way.add(task)
        self._bytes += size
        caller = Caller(context)
        try:
            self._admit(method, caller)
            return await verb(caller)
        except asyncio.CancelledError:
            if not self._over:
                raise
            status, text = status_and_message(Unavailable("the server shut down before it had the answer"))
        except Exception as error:  # the root of the call's task: log it, answer, go on serving
            status, text = status_and_message(error)
        finally:
            self._bytes -= size
            self._under_way.discard(task)
        try:
            return await context.abort(grpc.StatusCode[status], text)
        except grpc.aio.InternalError:  # the client has gone: cancelled, as gRPC itself soon will be
            raise asyncio.CancelledError from None

    async def _follow(self, method: Method, caller: Caller) -> None:
        """Serve a stream until it ends or the server closes."""
        assert method.stream is not None, f"{method.path} is not a stream"
        stream = method.stream(self._context, caller)
        self._streams.add(stream)
        if self._closing is not None:
            stream.end()
        try:
            await stream.serve()
        finally:
            self._streams.discard(stream)

    def _admit(self, method: Method, caller: Caller) -> None:
        """Raise if the caller has no permission, or if there are too many calls or bytes already."""
        authorization = caller.header("authorization")
        if "," in authorization:  # no token has a comma
            raise InvalidRequest("the call has several values of authorization: send one")
        if method.access in self._asks:
            self._guard.check(method.access, authorization.encode() or None)
        limits = self._limits
        if len(self._under_way) > limits.calls:
            raise Refused(f"{limits.calls} calls are in flight: try again later")
        if self._bytes > limits.held_bytes:
            raise Refused(f"the requests in flight have more than {limits.held_bytes} bytes: try again later")


class _Current:
    """gRPC calls it for each new connection, on its own threads: returns certificates if they are new, or None."""

    def __init__(self, tls: Certificates) -> None:
        self._tls = tls
        self.given = tls.current()

    def __call__(self) -> Any:
        current = self._tls.current()
        if current is self.given:
            return None
        self.given = current
        return _configuration(current)


def _configuration(tls: Loaded) -> Any:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.certificate)], tls.authority)


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a record of gRPC's own log is about more than a client that has gone.

    The server logs a traceback of `CancelledError` for a call that was cancelled before its task first ran.
    """
    error = record.exc_info[1] if record.exc_info else None
    return not isinstance(error, asyncio.CancelledError)


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
