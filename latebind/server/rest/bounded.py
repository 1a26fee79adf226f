"""uvicorn's HTTP protocol with the limits it lacks: bytes of headers and number of chunks, counted as they arrive."""

from asyncio import AbstractEventLoop, Task, Transport, current_task
from typing import Any

import orjson
from uvicorn import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from latebind.domain.errors import InvalidRequest, LatebindError, TooLarge, UserError
from latebind.server.limits import HeadTooLarge, Limits, TooManyConnections

CONNECTION = "latebind.connection"  # where a request's scope has it, among the extensions


class Connection:
    """What a request may know of its connection, and the task to cancel when the client hangs up.

    ASGI's own way, to wait for `http.disconnect`, takes a second task for each request: a fifth of the door's work.
    """

    __slots__ = ("_loop", "_waiting", "lost")

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: Task[Any] | None = None
        self.lost = False

    def watch(self) -> None:
        """Have the running task cancelled when the client hangs up from now on."""
        self._waiting = current_task(self._loop)

    def unwatch(self) -> None:
        """Let the task be."""
        self._waiting = None

    def lose(self) -> None:
        """Note that the client has hung up."""
        self.lost = True
        if self._waiting is not None:
            self._waiting.cancel()


class OneWrite:
    """A transport that writes the head and the body of a reply at once: half the system calls, half the packets.

    uvicorn hands them over one after the other and uvloop writes each immediately.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Keep `data` until the running callback has ended."""
        if not self._parts:
            self._loop.call_soon(self.flush)
        self._parts.append(data)

    def flush(self) -> None:
        """Write what was kept."""
        parts, self._parts = self._parts, []
        if parts:
            self._transport.writelines(parts)

    def close(self) -> None:
        """Write what was kept and close."""
        self.flush()
        self._transport.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedProtocol(HttpToolsProtocol):
    """Refuses requests past the limits, and those that are no HTTP, as `{"error": ...}`; the connection ends there.

    Bytes that bring the parser nowhere (an unfinished head, chunk extension or trailer) are bounded too: the parser
    keeps them and has no limit of its own. Connections past their number are refused, and `Sweeper` ends idle ones.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        limits: Limits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self._progressed = False
        self._unfinished_bytes = 0
        self._chunks = 0
        self._heads = 0
        self._refusal: UserError | None = None
        self._connection = Connection(self.loop)
        self._extensions: dict[str, Any] = {CONNECTION: self._connection}

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin."""
        super().connection_made(OneWrite(transport, self.loop))  # type: ignore[arg-type]
        if len(self.connections) > self._limits.connections:
            self._refuse(TooManyConnections(f"the server has {self._limits.connections} connections: try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is under way for the client."""
        super().connection_lost(exc)
        self._connection.lose()

    def data_received(self, data: bytes) -> None:
        """Feed the parser and see whether it gets on."""
        if self.transport.is_closing():
            return  # what came behind a refusal
        self._progressed = False
        super().data_received(data)
        self._unfinished_bytes = 0 if self._progressed else self._unfinished_bytes + len(data)
        if self._unfinished_bytes > self._limits.header_bytes and not self.transport.is_closing():
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        """Begin a request."""
        super().on_message_begin()
        self.scope["extensions"] = self._extensions
        self._chunks = 0

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too large or asks for what is no plain HTTP/1."""
        self._progressed = True
        self._heads += 1
        size = len(self.url) + sum([len(name) + len(value) for name, value in self.headers])
        if size > self._limits.header_bytes:
            self._refusal = self._head_too_large()
            raise self._refusal  # the parser stops and calls `send_400_response`
        if self.parser.should_upgrade():  # the parser takes what follows, its body too, for another protocol
            self._refusal = InvalidRequest("this server speaks HTTP/1.1 alone: send the request without Upgrade")
            raise self._refusal
        if not self.url.startswith(b"/"):
            self._refusal = InvalidRequest("the target of the request is no path: this server is no proxy")
            raise self._refusal
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Count the chunks of a body; the parser calls this for each."""
        self._progressed = True
        self._chunks += 1
        if self._chunks > self._limits.chunks:
            self._refusal = TooLarge(f"the body has more than {self._limits.chunks} chunks")
            raise self._refusal

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on; the application counts its bytes."""
        self._progressed = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request's body."""
        self._progressed = True
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser rejected; `msg` is uvicorn's text, used where none of the limits was the reason."""
        self._refuse(self._refusal or InvalidRequest(msg))

    def stillness(self) -> object:
        """Return what stays the same while the client sends no whole head, or takes nothing of a reply."""
        unsent = self.transport.get_write_buffer_size()
        if not unsent and self.cycle is not None and not self.cycle.response_complete:
            return None  # its request is under way, with limits of its own
        return self._heads, unsent

    def give_up(self) -> None:
        """Close the connection of a client that neither brings nor takes anything."""
        self.transport.abort()

    def _refuse(self, error: LatebindError) -> None:
        """Reply and close; only close where the reply to an earlier request is under way."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            body = orjson.dumps({"error": str(error)})
            head = b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            self.transport.write(STATUS_LINE[error.http_status] + head + body)
        self.transport.close()

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"request line and headers have more than {self._limits.header_bytes} bytes")
