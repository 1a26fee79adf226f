"""HTTP/1.1 on one connection: httptools parses, requests are answered in order, limits are counted as bytes arrive.

The parsed head of a request, its route and whether it is let in are looked up by the bytes of the head
(`RestApp.head`): clients send the same heads again and again.
"""

import sys
import time
from asyncio import CancelledError, Future, Protocol, Task, Transport, get_running_loop
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

import httptools

from latebind.domain.errors import InvalidRequest, LatebindError, Refused, TooLarge, Unavailable, UserError
from latebind.server.limits import BodyTimeout, HeadTooLarge, Limits, TooManyConnections, body_too_large
from latebind.server.rest.compression import Inflater, Receive
from latebind.server.rest.messages import OWN, ClientGone, Connection, Head, Header, Reply, error_reply, reply_to

if TYPE_CHECKING:
    from latebind.server.rest.app import RestApp

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
LENGTH: Final = b"content-length: %d\r\n\r\n"
LAST: Final = b"content-length: %d\r\nconnection: close\r\n\r\n"
CHUNKED: Final = b"transfer-encoding: chunked\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
TOGETHER: Final = 1 << 15  # a body of up to this many bytes is joined with the head of its reply, for one write
NO_HTTP = "the request is not valid HTTP/1.1"
PIPELINED: Final = 16  # requests that may wait for the one before them on their connection
UNREAD_SECONDS: Final = 0.05  # an idle connection stays open so long when the frontend closes, to read what has arrived
NOTHING: Final = memoryview(b"")
HIGH_WATER: Final = 1 << 16  # unread bytes of a body beyond which reading from the client stops


class Held:
    """Counts the bytes in memory of all bodies that are collected before they can be read, such as JSON."""

    def __init__(self, most: int) -> None:
        self.bytes = 0
        self._most = most

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises `Refused`, and counts none of them, if that would be too many."""
        if self.bytes + size > self._most:
            raise Refused(f"the requests in flight have more than {self._most} bytes: try again later")
        self.bytes += size

    def give_back(self, size: int) -> None:
        """Count `size` fewer bytes: they are not needed any more."""
        self.bytes -= size


class Request:
    """A request whose head is complete; its body may still be on its way.

    `fields` are its headers by name, several values of one joined by commas (RFC 9110, 5.3). `names` are the named
    parts of the path.

    The body is read piece by piece, and only when it is asked for, so TCP holds back a client whose body has to wait.
    `arrived` is how many bytes have come, after decompression unless the body is wanted `as_sent`. The client has
    `Limits.body_seconds` to send it; only time in which it is awaited counts. What `read` collects from several pieces
    is counted in `Held` until `release`.

    Reading raises `ClientGone`, `BodyTimeout`, `TooLarge`, `UnsupportedEncoding`, `Refused`, `InvalidRequest` and the
    error of `refuse`.
    """

    # What most requests never change is here, and costs them nothing.
    task: Task[None] | None = None  # that answers it
    answered = False
    disconnected = False
    as_sent = False
    sent_continue = False  # whether `100 Continue` was sent
    arrived = 0
    _begun = False  # something of the body has come
    _to_come = True  # more of it, from the client
    _more = True  # there may be more of it to read
    _unparsed = 0  # bytes of it that have come and are not read
    _collected = 0  # bytes, counted in `Held`
    _waited = 0.0  # seconds spent, of those that the client has for it
    _unread = NOTHING
    _receive: Receive | None = None
    _news: Future[None] | None = None
    _is_watched = False

    def __init__(self, connection: Connection, head: Head, *, keep_alive: bool) -> None:
        self.head = head
        self.names = head.names
        self.fields = head.fields
        self.keep_alive = keep_alive
        self._connection = connection
        self._parts: list[bytes] = []

    # What the connection calls ---------------------------------------------------------------------------------------

    def feed(self, part: bytes) -> None:
        """Take the next part of the body; it is dropped once there is an answer."""
        if self.answered:
            return
        self._begun = True
        self._parts.append(part)
        self._unparsed += len(part)
        if self._unparsed > HIGH_WATER:
            self._connection.hold()
        if self._news is not None:
            self._wake()

    def complete(self) -> None:
        """Note that the body is complete."""
        self._to_come = False
        if self._news is not None:
            self._wake()

    @property
    def has_not_begun(self) -> bool:
        """Whether the body is awaited and nothing of it has come."""
        return not self._begun and self._news is not None and not self._news.done()

    def refuse(self, error: LatebindError) -> None:
        """Raise this error in the task that waits for the body. The connection is closed after the reply."""
        if self._news is not None and not self._news.done():
            self.keep_alive = False
            self._news.set_exception(error)

    def disconnect(self) -> None:
        """Note that the client has hung up."""
        self.disconnected = True
        self._wake()
        if self._is_watched and self.task is not None:
            self.task.cancel()

    # What verbs ask --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> str:
        """The model of the path."""
        model: str = self.names["model"]
        return model

    @property
    def version(self) -> str | None:
        """The version of the path, if it names one."""
        version: str | None = self.names.get("version")
        return version

    def watch(self) -> None:
        """From now on, cancel the task that answers when the client hangs up, not only while it reads the body."""
        self._is_watched = True

    @property
    def size(self) -> int | None:
        """How many bytes the body will have, if the head says so; unknown for a compressed body."""
        return None if self.head.encoding and not self.as_sent else self.head.length

    async def read(self, size: int | None = None) -> bytes:
        """Return the next `size` bytes, or all; fewer if the body ends before."""
        missing = sys.maxsize if size is None else size
        # A piece has at most what is read of a connection at once, and connections are bounded.
        if (self._unread or await self.available()) and (len(self._unread) >= missing or not self._more):
            return bytes(self._cut(missing))
        parts: list[memoryview] = []
        while missing and await self.available():
            part = self._cut(missing)
            self._connection.context.held.take(len(part))
            self._collected += len(part)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def release(self) -> None:
        """Stop counting what was collected."""
        if self._collected:
            self._connection.context.held.give_back(self._collected)
            self._collected = 0

    async def read_into(self, place: memoryview) -> bool:
        """Fill `place` with the next bytes, and return whether the body had that many."""
        filled = 0
        while filled < len(place) and (self._unread or await self.available()):
            part = self._cut(len(place) - filled)
            place[filled : filled + len(part)] = part
            filled += len(part)
        return filled == len(place)

    async def measure(self) -> int:
        """Return how many bytes the body has. If its head does not say, the whole body is read first."""
        size = self.size
        if size is None:
            whole = await self.read()
            self._unread, size = memoryview(whole), len(whole)
        return size

    async def available(self) -> bool:
        """Return whether there is more of the body; waits until that is known."""
        while not self._unread and self._more:
            if not self.arrived and self._receive is None:
                self._begin()
            if self._receive is None and (self._parts or not self._to_come):  # the usual case: it came with its head
                piece, self._more = self._take()
            else:
                piece, self._more = await (self._receive or self._pieces)()
            self._unread = memoryview(piece)
            self.arrived += len(piece)
            if self.arrived > self._connection.context.limits.body_bytes:
                raise body_too_large(self._connection.context.limits)
        return bool(self._unread)

    def _begin(self) -> None:
        """Refuse a body that is too large, and prepare to decompress a compressed one."""
        limits, head = self._connection.context.limits, self.head
        if head.length is not None and head.length > limits.body_bytes:
            raise body_too_large(limits)
        if head.encoding and not self.as_sent:
            self._receive = Inflater(self._pieces, head.encoding, limits).receive

    async def _pieces(self) -> tuple[bytes, bool]:
        """Return what has arrived of the body, and whether there may be more; waits while there is nothing new."""
        if not self._parts and self._to_come and not self.disconnected:
            self._connection.go_on()
            await self._wait()
        return self._take()

    def _take(self) -> tuple[bytes, bool]:
        """Return what has arrived of the body, and whether there may be more."""
        if self.disconnected:
            raise ClientGone
        parts, self._parts, self._unparsed = self._parts, [], 0
        if not self._to_come:
            self._connection.read_on()  # otherwise a hang-up of the client would not be noticed
        return parts[0] if len(parts) == 1 else b"".join(parts), self._to_come

    async def _wait(self) -> None:
        """Wait for news of the body. Only requests that wait have a timer: most bodies come with their heads."""
        loop, seconds = get_running_loop(), self._connection.context.limits.body_seconds
        self._news = news = loop.create_future()
        late = BodyTimeout(f"the body did not arrive within {seconds:g} s")
        timer = loop.call_later(max(0.0, seconds - self._waited), self.refuse, late)
        begun = time.monotonic()
        try:
            await news
        finally:
            timer.cancel()
            self._waited += time.monotonic() - begun

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _cut(self, most: int) -> memoryview:
        unread = self._unread
        if len(unread) <= most:
            self._unread = NOTHING
            return unread
        self._unread = unread[most:]
        return unread[:most]


class HttpProtocol(Protocol):
    """Serves one connection of an application.

    A request that exceeds a limit or is not HTTP gets `{"error": ...}`, and the connection is closed. Bytes that do not
    let the parser make progress (an incomplete head, chunk extension or trailer) are bounded here, because the parser
    keeps them and has no limit of its own. Connections beyond their limit are refused; `RestApp` closes idle ones.
    """

    def __init__(self, app: "RestApp") -> None:
        self.app = app
        self.context = app.context
        self.limits: Limits = app.context.limits
        self._loop = get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        # Data behind a request that closes the connection are ignored; they must not prevent its answer.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._target = b""
        self._headers: list[Header] = []
        self._incoming: Request | None = None  # the request whose body is arriving
        self._current: Request | None = None  # the request that is being answered
        self._pipelined: deque[Request] = deque()
        self._held = False
        self._is_open = True  # for writing: the client takes what was written
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
        connections = self.app.connections
        connections.add(self)
        if len(connections) > self.limits.connections:
            self._refuse(TooManyConnections(f"the server has {self.limits.connections} connections: try again later"))

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel what is under way for the client."""
        del exc
        self.app.connections.discard(self)
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
        if self._unfinished_bytes > self.limits.header_bytes:
            self._refuse(head_too_large(self.limits))

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
        self._chunks = 0

    def on_url(self, url: bytes) -> None:
        """Add a part of the request's target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Those after a body are dropped: nothing that is decided by the head may change later."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is too large or asks for more than plain HTTP/1."""
        self._progressed = True
        self._heads += 1
        parser = self._parser
        if parser.should_upgrade():  # the parser would take all that follows, also the body, for another protocol
            self._refusal = InvalidRequest("this server supports only HTTP/1.1: send the request without Upgrade")
            raise self._refusal  # the parser stops
        try:
            head = self.app.head(parser.get_http_version(), parser.get_method(), self._target, tuple(self._headers))
        except UserError as error:
            self._refusal = error
            raise
        keep_alive = head.chunked and parser.should_keep_alive()
        self._incoming = request = Request(self, head, keep_alive=keep_alive)
        self._pipelined.append(request)
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
        if self._chunks > self.limits.chunks:  # checked here, since the chunk that ends a body is empty
            self._refusal = TooLarge(f"the body has more than {self.limits.chunks} chunks: send fewer, larger ones")
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
        current = self._current
        if current is not None and current.head.expects and not current.sent_continue:
            current.sent_continue = True
            self._transport.write(CONTINUE)

    # What the application needs ------------------------------------------------------------------------------------

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
            incoming.refuse(Unavailable("the server is shutting down: use another one"))

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
        self.app.tasks.add(task)
        if self._ending:  # its body may never come
            self._loop.call_later(UNREAD_SECONDS, self._close_idle)

    async def _serve(self, request: Request) -> None:
        """The root of a request's task: exactly one reply, whatever happens; none if its client has gone."""
        try:
            try:
                reply = await request.head.verb(self.app.context, request)
            except ClientGone:
                return
            except CancelledError:
                if request.disconnected:
                    return
                # The time to drain is over; the task ends with this reply.
                reply = error_reply(Unavailable("the server shut down before it had the answer"), request.head.errors)
            except Exception as error:  # log it, answer, go on serving
                reply = reply_to(error, request.head.errors)
            if not request.answered:  # the connection may have refused the rest of it meanwhile
                self.app.context.replies[reply.status] += 1
                request.answered = True
            if request.disconnected or self._transport.is_closing():
                return
            if reply.pieces is not None:
                await self._send_pieces(request, reply, reply.pieces)
            else:
                goes_on = self._goes_on(request)
                self._write(reply, head_only=request.head.head_only, goes_on=goes_on)
                self._done(goes_on)
        finally:
            request.release()
            assert request.task is not None
            self.app.tasks.discard(request.task)

    async def _send_pieces(self, request: Request, reply: Reply, pieces: AsyncGenerator[bytes]) -> None:
        """Send a reply in pieces: each once it is there and the client has taken those before it.

        A client of HTTP/1.1 gets chunks (RFC 9112, 7.1), an older one plain bytes up to the end of the connection. The
        reply is cut off if its client hangs up, or when the time to drain is over; then the last chunk is missing.
        """
        transport, chunked = self._transport, request.head.chunked
        goes_on = self._goes_on(request)
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
        self._done(goes_on and self._goes_on(request))

    def _write(self, reply: Reply, *, head_only: bool, goes_on: bool) -> None:
        """Write a whole reply; the connection `goes_on` after it, or its head says that it closes."""
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
        """Return the lines of a head, without those on the length of the body."""
        lines = [STATUS_LINES[reply.status], self.app.date, reply.lines]
        for header in reply.headers:
            lines.append(b"%b: %b\r\n" % header)
        return lines

    def _open(self) -> None:
        """Note that the client has taken most of what was written, or has gone."""
        self._is_open = True
        if self._opened is not None and not self._opened.done():
            self._opened.set_result(None)

    def _goes_on(self, request: Request) -> bool:
        """Return whether the connection stays open after the current request."""
        return request.keep_alive and not (self._ending and not self._pipelined)

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
            reply = error_reply(error, OWN if self._incoming is None else self._incoming.head.errors)
            self._write(reply, head_only=False, goes_on=False)
            self.app.context.replies[reply.status] += 1
            if self._incoming is not None:
                self._incoming.answered = True
        self._transport.close()


def head_too_large(limits: Limits) -> HeadTooLarge:
    """Return the error for a head past its limit."""
    most = limits.header_bytes
    return HeadTooLarge(f"request line and headers have more than {most} bytes: send fewer or shorter headers")
