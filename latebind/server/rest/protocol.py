"""HTTP/1.1 on one connection: httptools parses, each request is answered in its turn, limits are counted as bytes come.

uvicorn's server accepts connections, tells the time and drains. Its own protocol, with ASGI between, took a third of
what a small request costs the door; this one takes an eighth (decision 2).
"""

from asyncio import AbstractEventLoop, Protocol, Transport, get_running_loop
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, Final
from typing import Protocol as Interface

import httptools
import orjson
from uvicorn import Config
from uvicorn.server import ServerState

from latebind.domain.errors import InvalidRequest, LatebindError, TooLarge, UserError
from latebind.server.limits import HeadTooLarge, Limits, TooManyConnections
from latebind.server.rest.exchange import Exchange
from latebind.server.rest.request import JSON, Reply

Answer = Callable[[Exchange], Awaitable[Reply | None]]

STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CLOSED: Final = b"\r\nconnection: close\r\n\r\n"
END: Final = b"\r\n\r\n"
LENGTH: Final = b"content-length: %d" + END
LAST: Final = b"content-length: %d" + CLOSED
NO_HTTP = "the request is no HTTP/1.1 that this server understands"
PIPELINED: Final = 16  # requests that may wait for the one before them on their connection
UNREAD_SECONDS: Final = 0.05  # that an idle connection stays open as the door closes, for what lies in it to be read
TOGETHER: Final = 1 << 15  # bytes of a body that are copied behind the head of a reply, for one write


class Short(Interface):
    """A request that is answered by `HttpProtocol.reply`, without a task."""

    expects: bool

    def begin(self) -> None:
        """Have it answered."""

    def lose(self) -> None:
        """Note that the client has hung up."""


Take = Callable[["HttpProtocol", bytes, str], Short | None]


class HttpProtocol(Protocol):
    """Serves one connection; `answer` has the reply to each request, None where nobody is there to get it.

    What comes while nothing is under way is shown to `take` first, which may have a shorter way for a whole request.

    Refuses requests past the limits, and those that are no HTTP, as `{"error": ...}`; the connection ends there. Bytes
    that bring the parser nowhere (an unfinished head, chunk extension or trailer) are bounded too: the parser keeps
    them and has no limit of its own. Connections past their number are refused, and `Sweeper` ends idle ones.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: AbstractEventLoop | None = None,
        *,
        answer: Answer,
        take: Take,
        limits: Limits,
    ) -> None:
        del config, app_state
        self._loop = _loop or get_running_loop()
        self._state = server_state
        self._answer = answer
        self._take = take
        self._limits = limits
        self.familiar: Any = None  # what `take` keeps of the call that came last
        self._parser = httptools.HttpRequestParser(self)
        # What follows a request that closes is dropped once that is answered, not a reason to drop the answer.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._client = ""
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._expects = False
        self._incoming: Exchange | None = None  # whose body comes
        self._current: Exchange | Short | None = None  # whose answer is made
        self._within = False  # a request, of which the parser has a part
        self._piece = b""  # with which a request begins
        self._pipelined: deque[Exchange] = deque()
        self._held = False
        self._writable = True
        self._ending = False
        self._progressed = False
        self._unfinished_bytes = 0
        self._chunks = 0
        self._heads = 0
        self._refusal: UserError | None = None
        self._usual: tuple[list[tuple[bytes, bytes]], bytes] = [], b""

    # The transport's calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin."""
        self._transport = transport
        connections: set[Any] = self._state.connections
        connections.add(self)
        address = transport.get_extra_info("peername")
        self._client = str(address[0]) if isinstance(address, tuple) else ""
        if len(connections) > self._limits.connections:
            self._refuse(TooManyConnections(f"the server has {self._limits.connections} connections: try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is under way for the client."""
        del exc
        connections: set[Any] = self._state.connections
        connections.discard(self)
        for exchange in (self._current, *self._pipelined):
            if exchange is not None:
                exchange.lose()
        self._pipelined.clear()

    def data_received(self, data: bytes) -> None:
        """Feed the parser and see whether it gets on."""
        if self._transport.is_closing():
            return  # what came behind a refusal
        if not self._within:
            if self._current is None and self._writable and not self._ending:
                short = self._take(self, data, self._client)
                if short is not None:
                    self._heads += 1
                    self._current = short
                    short.begin()
                    return
            self._piece = data
        self._progressed = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._refusal or InvalidRequest(NO_HTTP))
            return
        self._piece = b""
        self._unfinished_bytes = 0 if self._progressed else self._unfinished_bytes + len(data)
        if self._unfinished_bytes > self._limits.header_bytes:
            self._refuse(self._head_too_large())

    def pause_writing(self) -> None:
        """Begin no other reply until the client has taken what was written."""
        self._writable = False

    def resume_writing(self) -> None:
        """Go on."""
        self._writable = True
        if self._current is None:
            self._next()

    # The parser's calls ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._within = True
        self._target = b""
        self._headers = []
        self._expects = False
        self._chunks = 0

    def on_url(self, url: bytes) -> None:
        """Take in a part of the request's target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header."""
        name = name.lower()
        if name == b"expect":
            self._expects = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too large or asks for what is no plain HTTP/1."""
        self._progressed = True
        self._heads += 1
        parser = self._parser
        size = len(self._target) + sum([len(name) + len(value) for name, value in self._headers])
        if size > self._limits.header_bytes:
            self._refusal = self._head_too_large()
        elif parser.should_upgrade():  # the parser takes what follows, its body too, for another protocol
            self._refusal = InvalidRequest("this server speaks HTTP/1.1 alone: send the request without Upgrade")
        elif not self._target.startswith(b"/"):
            self._refusal = InvalidRequest("the target of the request is no path: this server is no proxy")
        if self._refusal is not None:
            raise self._refusal  # the parser stops
        self._incoming = Exchange(
            self,
            self._loop,
            parser.get_method().decode("ascii"),
            self._target.partition(b"?")[0],
            self._headers,
            client=self._client,
            keep_alive=parser.should_keep_alive() and parser.get_http_version() != "1.0",
            expects=self._expects and parser.get_http_version() != "1.0",  # RFC 9110, 10.1.1
            head=self._head(),
        )
        self._pipelined.append(self._incoming)
        if self._current is None:
            self._next()
        elif len(self._pipelined) > PIPELINED:
            self.hold()

    def on_chunk_header(self) -> None:
        """Count the chunks of a body; the parser calls this for each."""
        self._progressed = True
        self._chunks += 1
        if self._chunks > self._limits.chunks:
            self._refusal = TooLarge(f"the body has more than {self._limits.chunks} chunks")
            raise self._refusal

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on; the verb that reads it counts its bytes."""
        self._progressed = True
        assert self._incoming is not None, "the parser has a body without a head"
        self._incoming.feed(body)

    def on_message_complete(self) -> None:
        """End the request's body."""
        self._progressed = True
        self._within = False
        assert self._incoming is not None, "the parser has an end without a head"
        self._incoming.complete()
        self._incoming = None

    # What requests need ---------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Read no more for now."""
        if not self._held:
            self._held = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Read again."""
        if self._held:
            self._held = False
            self._transport.resume_reading()

    def go_on(self) -> None:
        """Read on, and tell a client that waits for this to send its body."""
        self.read_on()
        if self._current is not None and self._current.expects:
            self._current.expects = False
            self._transport.write(CONTINUE)

    # What the server and `Sweeper` need -----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close once everything that has come is answered, what nobody has read yet too: closing would reset it."""
        self._ending = True
        self._loop.call_later(UNREAD_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        if self._current is None and not self._pipelined:
            self._transport.close()

    def stillness(self) -> object:
        """Return what stays the same while the client sends no whole head, or takes nothing of a reply."""
        unsent = self._transport.get_write_buffer_size()
        if not unsent and self._current is not None:
            return None  # its request is under way, with limits of its own
        return self._heads, unsent

    def give_up(self) -> None:
        """Close the connection of a client that neither brings nor takes anything."""
        self._transport.abort()

    # Replies --------------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Have the next request answered, if there is one and its answer can be written."""
        if not self._pipelined or not self._writable or self._transport.is_closing():
            return
        self._current = exchange = self._pipelined.popleft()
        tasks = self._state.tasks
        task = self._loop.create_task(self._serve(exchange))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _serve(self, exchange: Exchange) -> None:
        """Root of a request's task; `answer` fails for no reason."""
        reply = await self._answer(exchange)
        exchange.answered = True
        if exchange.lost or self._transport.is_closing():
            return
        if reply is None:
            self._transport.close()
            return
        self._finish(reply, head_only=exchange.method == "HEAD", keep_alive=exchange.keep_alive)

    def reply(self, to: object, reply: Reply) -> None:
        """Send the reply to a request that `take` took, if the client is still there."""
        if to is self._current and not self._transport.is_closing():
            self._finish(reply, head_only=False, keep_alive=True)

    def pass_on(self, to: object, written: bytes) -> None:
        """Send the reply to a request that `take` took as another door wrote it, if the client is still there.

        That left the connection open.
        """
        if to is not self._current or self._transport.is_closing():
            return
        goes_on = self._goes_on(keep_alive=True)
        self._transport.write(written if goes_on else written.replace(END, CLOSED, 1))
        self._done(goes_on)

    def _finish(self, reply: Reply, *, head_only: bool, keep_alive: bool) -> None:
        goes_on = self._goes_on(keep_alive)
        self._write(reply, head_only=head_only, goes_on=goes_on)
        self._done(goes_on)

    def _goes_on(self, keep_alive: bool) -> bool:
        """Return whether the connection stays open once the current request is answered."""
        return keep_alive and not (self._ending and not self._pipelined)

    def _done(self, goes_on: bool) -> None:
        """The current request is answered."""
        self._current = None
        if not goes_on:
            self._transport.close()
        elif self._pipelined:
            self._next()
        else:
            self.go_on()

    def _head(self) -> bytes:
        """Return the head that is complete, where it was all at the beginning of what came."""
        piece, self._piece = self._piece, b""
        return piece[: piece.find(END) + len(END)]

    def _write(self, reply: Reply, *, head_only: bool, goes_on: bool) -> None:
        body = reply.body
        lines = [STATUS_LINES[reply.status], self._usual_lines(), reply.lines]
        for header in reply.headers:
            lines.append(b"%b: %b\r\n" % header)
        lines.append((LENGTH if goes_on else LAST) % len(body))
        if head_only:
            self._transport.write(b"".join(lines))
        elif len(body) <= TOGETHER:
            lines.append(body)
            self._transport.write(b"".join(lines))
        else:
            self._transport.writelines((b"".join(lines), body))

    def _usual_lines(self) -> bytes:
        """Return the lines that all replies of this second have: uvicorn's, the date among them."""
        headers = self._state.default_headers
        if headers is not self._usual[0]:
            self._usual = headers, b"".join([b"%b: %b\r\n" % header for header in headers])
        return self._usual[1]

    def _refuse(self, error: LatebindError) -> None:
        """Reply and close; only close where the answer to an earlier request is being made, or this one has its own."""
        has_reply = self._incoming is not None and self._incoming.answered
        if self._current in (None, self._incoming) and not has_reply and not self._transport.is_closing():
            body = orjson.dumps({"error": str(error)})
            self._write(Reply(body, JSON, error.http_status), head_only=False, goes_on=False)
        self._transport.close()

    def _head_too_large(self) -> HeadTooLarge:
        return HeadTooLarge(f"request line and headers have more than {self._limits.header_bytes} bytes")
