"""HTTP/1.1 on one connection: httptools parses, requests are answered in order, limits are counted as bytes arrive.

uvicorn's protocol, with ASGI in between, took a third of what a small request costs the frontend; this one takes an
eighth.
"""

from asyncio import CancelledError, Future, Protocol, Task, Transport, get_running_loop, sleep
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from email.utils import formatdate
from http import HTTPStatus
from time import time
from typing import Final

import httptools

from latebind.domain.errors import InvalidRequest, LatebindError, TooLarge, Unavailable, UserError
from latebind.server.limits import HeadTooLarge, Limits, TooManyConnections
from latebind.server.rest.request import Header, Reply, Request, error_reply, head_of

Answer = Callable[[Request], Awaitable[Reply | None]]

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
LENGTH: Final = b"content-length: %d\r\n\r\n"
LAST: Final = b"content-length: %d\r\nconnection: close\r\n\r\n"
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
TOGETHER: Final = 1 << 15  # a body of up to so many bytes is joined with the head of its reply, for one write
NO_HTTP = "the request is no HTTP/1.1 that this server understands"
PIPELINED: Final = 16  # requests that may wait for the one before them on their connection
UNREAD_SECONDS: Final = 0.05  # an idle connection stays open so long when the frontend closes, to read what has arrived


class Lines:
    """What all connections of a server share: those that are open, the tasks that answer, and the `Date` of replies."""

    def __init__(self) -> None:
        self.open: set[HttpProtocol] = set()
        self.tasks: set[Task[None]] = set()
        self.date = b""  # a line of a head

    async def keep_date(self) -> None:
        """Keep the date until cancelled; replies of one second share the line."""
        while True:
            self.date = b"date: %b\r\n" % formatdate(time(), usegmt=True).encode()
            await sleep(1.0)


class HttpProtocol(Protocol):
    """Serves one connection. `answer` returns the reply to a request, or None if its client has gone.

    Replies that nobody else knows of are counted in `replies`, by status.

    A request that exceeds a limit or is not HTTP gets `{"error": ...}`, and the connection is closed. Bytes that do not
    let the parser make progress (an incomplete head, chunk extension or trailer) are bounded here, because the parser
    keeps them and has no limit of its own. Connections beyond their limit are refused; `Sweeper` closes idle ones.
    """

    def __init__(self, lines: Lines, *, answer: Answer, limits: Limits, replies: Counter[int]) -> None:
        self._loop = get_running_loop()
        self._lines = lines
        self._answer = answer
        self._limits = limits
        self._replies = replies
        self._parser = httptools.HttpRequestParser(self)
        # Data behind a request that closes the connection are ignored; they must not prevent its answer.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._client = ""
        self._target = b""
        self._headers: list[Header] = []
        self._head_bytes = 0
        self._incoming: Request | None = None  # the request whose body is arriving
        self._current: Request | None = None  # the request that is being answered
        self._pipelined: deque[Request] = deque()
        self._held = False
        self._is_open = True  # for more to be written: the client takes what was
        self._opened: Future[None] | None = None
        self._ending = False
        self._progressed = False
        self._unfinished_bytes = 0
        self._chunks = 0
        self._heads = 0
        self._refusal: UserError | None = None

    # The transport's calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin."""
        self._transport = transport
        connections = self._lines.open
        connections.add(self)
        address = transport.get_extra_info("peername")
        self._client = str(address[0]) if isinstance(address, tuple) else ""
        if len(connections) > self._limits.connections:
            self._refuse(TooManyConnections(f"the server has {self._limits.connections} connections: try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is under way for the client."""
        del exc
        self._lines.open.discard(self)
        self._open()
        for request in (self._current, *self._pipelined):
            if request is not None:
                request.disconnect()
        self._pipelined.clear()

    def data_received(self, data: bytes) -> None:
        """Feed the parser and check that it makes progress."""
        if self._transport.is_closing():
            return  # data after a request that was refused
        self._progressed = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._refuse(self._refusal or InvalidRequest(NO_HTTP))
            return
        self._unfinished_bytes = 0 if self._progressed else self._unfinished_bytes + len(data)
        if self._unfinished_bytes > self._limits.header_bytes:
            self._refuse(self._head_too_large())

    def pause_writing(self) -> None:
        """Start no other reply until the client has taken what was written."""
        self._is_open = False

    def resume_writing(self) -> None:
        """Answer the next request."""
        self._open()
        if self._current is None:
            self._next()

    # The parser's calls ---------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Begin a request."""
        self._target = b""
        self._headers = []
        self._head_bytes = 0
        self._chunks = 0

    def on_url(self, url: bytes) -> None:
        """Take in a part of the request's target."""
        self._target += url
        self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header; trailers are ignored, as nothing that is decided by the head may change behind it."""
        if self._incoming is not None:
            return
        self._headers.append((name, value))
        self._head_bytes += len(name) + len(value)

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too large or asks for more than plain HTTP/1."""
        self._progressed = True
        self._heads += 1
        parser = self._parser
        version = parser.get_http_version()
        is_old = version == "1.0"
        method = parser.get_method()
        if self._head_bytes > self._limits.header_bytes:
            self._refusal = self._head_too_large()
        elif parser.should_upgrade():  # the parser would take all that follows, also the body, for another protocol
            self._refusal = InvalidRequest("this server speaks HTTP/1.1 alone: send the request without Upgrade")
        else:
            try:
                head = head_of(version, self._target, tuple(self._headers))
            except UserError as error:
                self._refusal = error
        if self._refusal is not None:
            raise self._refusal  # the parser stops
        self._incoming = Request(
            self,
            self._loop,
            "GET" if method == b"HEAD" else method.decode("ascii"),
            head.path,
            head.headers,
            fields=head.fields,
            client=self._client,
            keep_alive=parser.should_keep_alive() and not is_old,
            expects=head.expects,
            chunked=not is_old,
            head_only=method == b"HEAD",
            body_seconds=self._limits.body_seconds,
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

    def on_body(self, body: bytes) -> None:
        """Pass a part of the body on; the verb that reads it counts its bytes."""
        self._progressed = True
        if self._chunks > self._limits.chunks:  # found here, since the chunk that ends a body has nothing in it
            self._refusal = TooLarge(f"the body has more than {self._limits.chunks} chunks: send fewer, larger ones")
            raise self._refusal
        assert self._incoming is not None, "the parser has a body without a head"
        self._incoming.feed(body)

    def on_message_complete(self) -> None:
        """End the request's body."""
        self._progressed = True
        assert self._incoming is not None, "the parser has an end without a head"
        self._incoming.complete()
        self._incoming = None

    # What requests need ---------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Stop reading from the connection."""
        if not self._held:
            self._held = True
            self._transport.pause_reading()

    def read_on(self) -> None:
        """Read from the connection again."""
        if self._held:
            self._held = False
            self._transport.resume_reading()

    def go_on(self) -> None:
        """Read again, and send `100 Continue` to a client that waits for it before it sends its body."""
        self.read_on()
        if self._current is not None and self._current.expects:
            self._current.expects = False
            self._transport.write(CONTINUE)

    # What the server and `Sweeper` need -----------------------------------------------------------------------------

    def shutdown(self) -> None:
        """Close once everything that has arrived is answered, unread data too: closing would reset them."""
        self._ending = True
        self._loop.call_later(UNREAD_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        """Close if nothing is to be answered. A request of whose body nothing has come is refused."""
        incoming = self._incoming
        if self._current is None and not self._pipelined:
            self._transport.close()
        elif incoming is not None and incoming is self._current and incoming.has_not_begun:
            incoming.refuse(Unavailable("the server is shutting down: ask another one"))

    def idle_state(self) -> object:
        """Return a value that stays the same while the client sends no complete head, or takes nothing of a reply."""
        unsent = self._transport.get_write_buffer_size()
        if not unsent and self._current is not None:
            return None  # a request is under way, which has its own limits
        return self._heads, unsent

    def give_up(self) -> None:
        """Close the connection of a client that neither sends nor takes anything."""
        self._transport.abort()

    # Replies --------------------------------------------------------------------------------------------------------

    def _next(self) -> None:
        """Start to answer the next request, if there is one and its reply can be written."""
        if not self._pipelined or not self._is_open or self._transport.is_closing():
            return
        self._current = request = self._pipelined.popleft()
        request.task = task = self._loop.create_task(self._serve(request))
        self._lines.tasks.add(task)
        if self._ending:  # its body may never come
            self._loop.call_later(UNREAD_SECONDS, self._close_idle)

    async def _serve(self, request: Request) -> None:
        """The root of a request's task; `answer` does not raise."""
        try:
            reply = await self._answer(request)
            request.answered = True
            if request.disconnected or self._transport.is_closing():
                return
            if reply is None:
                self._transport.close()
            elif reply.pieces is not None:
                await self._send_pieces(request, reply, reply.pieces)
            else:
                goes_on = self._goes_on(request.keep_alive)
                self._write(reply, head_only=request.head_only, goes_on=goes_on)
                self._done(goes_on)
        finally:
            assert request.task is not None
            self._lines.tasks.discard(request.task)

    async def _send_pieces(self, request: Request, reply: Reply, pieces: AsyncGenerator[bytes]) -> None:
        """Send a reply in pieces: each when it is there, and no sooner than its client has taken those before it.

        A client of HTTP/1.1 gets chunks (RFC 9112, 7.1), an older one plain bytes up to the end of the connection. The
        reply is cut off if its client hangs up, or when the time to drain is over; then the last chunk is missing.
        """
        transport, chunked = self._transport, request.chunked
        goes_on = chunked and self._goes_on(request.keep_alive)
        head = (*self._head_lines(reply), CHUNKED if chunked else b"", b"" if goes_on else b"connection: close\r\n")
        transport.write(b"".join((*head, b"\r\n")))
        request.watch()
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    transport.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                    if not self._is_open:
                        self._opened = self._loop.create_future()
                        await self._opened
        except CancelledError:
            transport.close()
            return
        if chunked and not transport.is_closing():
            transport.write(LAST_CHUNK)
        self._done(goes_on and self._goes_on(keep_alive=True))

    def _write(self, reply: Reply, *, head_only: bool, goes_on: bool) -> None:
        """Write a whole reply; the connection `goes_on` after it, or the client is told that it closes."""
        body = reply.body
        lines = self._head_lines(reply)
        lines.append((LENGTH if goes_on else LAST) % len(body))
        if head_only:
            self._transport.write(b"".join(lines))
        elif len(body) <= TOGETHER:
            lines.append(body)
            self._transport.write(b"".join(lines))
        else:
            self._transport.writelines((b"".join(lines), body))

    def _head_lines(self, reply: Reply) -> list[bytes]:
        """Return the lines of a head, but for those on its length."""
        lines = [STATUS_LINES[reply.status], self._lines.date, reply.lines]
        for header in reply.headers:
            lines.append(b"%b: %b\r\n" % header)
        return lines

    def _open(self) -> None:
        """Note that the client has taken most of what was written, or has gone."""
        self._is_open = True
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    def _goes_on(self, keep_alive: bool) -> bool:
        """Tell whether the connection stays open after the current request."""
        return keep_alive and not (self._ending and not self._pipelined)

    def _done(self, goes_on: bool) -> None:
        """Go on after the current request was answered."""
        self._current = None
        if not goes_on:
            self._transport.close()
        elif self._pipelined:
            self._next()
        else:
            self.read_on()

    def _refuse(self, error: LatebindError) -> None:
        """Reply with an error and close; only close if another reply is being made, or this request has one."""
        has_reply = self._incoming is not None and self._incoming.answered
        if self._current in (None, self._incoming) and not has_reply and not self._transport.is_closing():
            reply = error_reply(error)
            self._write(reply, head_only=False, goes_on=False)
            self._replies[reply.status] += 1
            if self._incoming is not None:
                self._incoming.answered = True
        self._transport.close()

    def _head_too_large(self) -> HeadTooLarge:
        most = self._limits.header_bytes
        return HeadTooLarge(f"request line and headers have more than {most} bytes: send fewer or shorter headers")


class Sweeper:
    """Closes connections whose client sends nothing and takes nothing for `patience` seconds.

    All are checked from outside at intervals, so no request needs a timer of its own; those under way are left alone.
    """

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._still: dict[HttpProtocol, tuple[object, float]] = {}  # the state, and since when it is the same

    def sweep(self, connections: Iterable[HttpProtocol], now: float) -> None:
        """Check all connections at time `now`."""
        before, self._still = self._still, {}
        for connection in tuple(connections):
            state = connection.idle_state()
            if state is None:
                continue
            then, since = before.get(connection, (state, now))
            if then != state:
                since = now
            if now - since >= self._patience:
                connection.give_up()
            else:
                self._still[connection] = (state, since)

    async def run(self, connections: Iterable[HttpProtocol]) -> None:
        """Sweep until cancelled, four times in `patience` seconds."""
        clock = get_running_loop().time
        while True:
            self.sweep(connections, clock())
            await sleep(self._patience / 4)
