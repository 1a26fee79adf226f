"""The gRPC door opens and closes: the official server on a port of its own, drained before it ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from latebind.domain.config import DoorConfig
from latebind.domain.errors import ConfigError, Refused, Unavailable
from latebind.server.limits import Limits
from latebind.server.rpc.desk import Caller, Desk
from latebind.server.rpc.faults import told
from latebind.server.rpc.messages import grpc
from latebind.server.rpc.routes import SERVICES, STREAMS, Handler, Stream, handlers
from latebind.server.service import Service

LAST_WORDS = 1.0  # seconds for telling those that the drain had no more time for


class RpcDoor:
    """Serves the verbs of `service` over gRPC while it is open; in use like `Door`, which has one where it is wanted.

    Open it on the event loop that the service belongs to.
    """

    def __init__(self, service: Service, config: DoorConfig, limits: Limits) -> None:
        self._config = config
        self._limits = limits
        self._reception = Reception(Desk(service, limits))
        self._server: Any = None
        self._closing: asyncio.Task[None] | None = None
        self.port = 0

    async def open(self) -> None:
        """Listen; when this returns, calls are answered. Raises `ConfigError` where the address cannot be had."""
        self._server = grpc.aio.server(options=_options(self._limits), maximum_concurrent_rpcs=self._limits.calls)
        for service in SERVICES:
            self._server.add_registered_method_handlers(service.full_name, self._reception.handlers(service))
        host = f"[{self._config.host}]" if ":" in self._config.host else self._config.host
        try:
            self.port = self._server.add_insecure_port(f"{host}:{self._config.grpc_port}")
        except RuntimeError:
            where = f"{self._config.host} port {self._config.grpc_port}"
            raise ConfigError(f"server.grpc_port: cannot listen on {where}: is the port taken?") from None
        await self._server.start()

    def close(self) -> None:
        """Begin to close: no new calls; those under way have `Limits.drain_seconds` to end. Await `closed()`."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())

    async def closed(self) -> None:
        """Return when the door is closed and everything under way has ended."""
        assert self._closing is not None, "nobody has closed the door"
        await self._closing

    async def _close(self) -> None:
        seconds = self._limits.drain_seconds
        stopped = asyncio.create_task(self._server.stop(seconds + LAST_WORDS))
        self._reception.drain()
        await asyncio.wait({stopped}, timeout=seconds)
        self._reception.give_up()
        await stopped


class Reception:
    """Takes calls in from the server and sees to it that each gets one answer, also when the door closes."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._limits = desk.limits
        self._under_way: set[asyncio.Task[Any]] = set()
        self._streams: set[Stream] = set()
        self._bytes = 0
        self._over = False

    def handlers(self, service: Any) -> dict[str, Any]:
        """Return what the server calls for each method of a service."""
        found = {
            name: grpc.unary_unary_rpc_method_handler(self._unary(handler))
            for name, handler in handlers(service).items()
        }
        for method in service.methods:
            if method.name in STREAMS:
                found[method.name] = grpc.stream_stream_rpc_method_handler(self._stream(STREAMS[method.name]))
        return found

    def drain(self) -> None:
        """Have streams take no more requests."""
        for stream in self._streams:
            stream.end()

    def give_up(self) -> None:
        """Tell all that are still under way that there is no time left."""
        self._over = True
        for task in self._under_way:
            task.cancel()

    def _unary(self, handler: Handler) -> Callable[[bytes, Any], Awaitable[bytes]]:
        async def serve(data: bytes, context: Any) -> bytes:
            with self._call(len(data)):
                try:
                    self._bound_bytes()
                    return await handler(self._desk, data, _Caller(context))
                except asyncio.CancelledError:
                    await self._cancelled(context)
                    raise
                except Exception as error:  # the root of the call's task: report, answer, go on serving
                    await _abort(context, error)
                    raise

        return serve

    def _stream(self, make: Callable[[Desk, Caller], Stream]) -> Callable[[Any, Any], Awaitable[None]]:
        async def serve(requests: Any, context: Any) -> None:
            del requests  # they are read by the context
            with self._call(0):
                stream = make(self._desk, _Caller(context))
                self._streams.add(stream)
                try:
                    await stream.serve()
                except asyncio.CancelledError:
                    await self._cancelled(context)
                    raise
                except Exception as error:  # as above
                    await _abort(context, error)
                finally:
                    self._streams.discard(stream)

        return serve

    @contextmanager
    def _call(self, size: int) -> Iterator[None]:
        """Have a call and the bytes of its request counted as long as it lasts."""
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        self._bytes += size
        try:
            yield
        finally:
            self._under_way.discard(task)
            self._bytes -= size

    def _bound_bytes(self) -> None:
        """Raise `Refused` where the calls that are here have too many bytes together."""
        most = self._limits.held_bytes
        if self._bytes > most:
            raise Refused(f"the requests that are under way have more than {most} bytes: try again later")

    async def _cancelled(self, context: Any) -> None:
        """Tell a client that is still there why its call ends."""
        if self._over:
            await _abort(context, Unavailable("the server shut down before it had the answer"))


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

    def metadata(self) -> Mapping[str, str | bytes]:
        return dict(self._context.invocation_metadata())

    async def read(self) -> bytes | None:
        data = await self._context.read()
        return None if data is grpc.aio.EOF else data

    async def write(self, reply: bytes) -> None:
        await self._context.write(reply)


async def _abort(context: Any, error: Exception) -> None:
    """End the call with the status of an error. Raises what the server wants raised then."""
    status, text = told(error)
    await context.abort(grpc.StatusCode[status], text)


def _options(limits: Limits) -> list[tuple[str, int]]:
    """Return the server's settings; those of time are milliseconds."""
    return [
        ("grpc.so_reuseport", 0),  # else a second server on the port starts and takes half of the connections
        ("grpc.max_receive_message_length", limits.body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", limits.header_bytes),
        ("grpc.absolute_max_metadata_size", limits.header_bytes),
        ("grpc.max_concurrent_streams", limits.calls),
        ("grpc.server_handshake_timeout_ms", 10_000),
        ("grpc.keepalive_time_ms", 60_000),  # a client that has gone without a word is noticed by this
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # clients may ask as often
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]
