"""One HTTP request: its head, its body as it arrives on the connection, and the reply to it."""

import re
import sys
import time
from asyncio import AbstractEventLoop, Future, Task
from collections.abc import AsyncGenerator, Mapping
from functools import lru_cache
from math import ceil
from typing import Any, Final, NamedTuple, Protocol

import msgspec
import orjson

from latebind.domain.errors import InvalidRequest, LatebindError, Loading, Refused
from latebind.server.faults import for_clients
from latebind.server.limits import BodyTimeout, Limits, MethodNotAllowed, UnsupportedEncoding, body_too_large
from latebind.server.rest.compression import Inflater, Receive

Header = tuple[bytes, bytes]
Headers = tuple[Header, ...]

NOTHING: Final = memoryview(b"")
BODY_SECONDS: Final = Limits().body_seconds
HIGH_WATER: Final = 1 << 16  # unread bytes of a body beyond which reading from the client stops
JSON: Headers = ((b"content-type", b"application/json"),)
MORE: dict[int, Headers] = {401: ((b"www-authenticate", b"Bearer"),), 503: ((b"retry-after", b"1"),)}

# Two of them mean one thing to a proxy that reads the first, and another to a server that reads the last.
SINGLE: Final = (b"host", b"authorization", b"origin", b"sec-fetch-site")
# RFC 3986, 3.2.2 and 3.2.3, without user information, which RFC 9110, 4.2.4 has refused.
AUTHORITY: Final = re.compile(rb"(?:[A-Za-z0-9._~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
ABSOLUTE: Final = re.compile(rb"(?i:https?)://([^/?]*)(/[^?]*)?")


class ClientGone(Exception):
    """The client hung up; there is nobody to answer."""


class Connection(Protocol):
    """What a request needs of its connection."""

    def hold(self) -> None:
        """Stop reading from the connection."""

    def read_on(self) -> None:
        """Read from the connection again."""

    def go_on(self) -> None:
        """Read again, and send `100 Continue` to a client that waits for it before it sends its body."""


class Request:
    """A request whose head is complete; its body may still be on its way.

    `target` is the path as sent, without the query string. `headers` have lower-case names, in the order in which they
    came; `fields` are the same by name, several values of one joined by commas (RFC 9110, 5.3). `names` are the named
    parts of the path, once its route is known. `client` is the address it came from. `HEAD` is a `GET` whose reply is
    sent without its body (`head_only`). The client has `body_seconds` to send its body; time in which nobody waits for
    it does not count.
    """

    __slots__ = (
        *("answered", "chunked", "client", "disconnected", "expects", "fields", "head_only", "headers", "keep_alive"),
        *("method", "names", "target", "task"),
        *("_begun", "_body_seconds", "_connection", "_is_watched", "_loop", "_more", "_news", "_parts", "_unread"),
        "_waited",
    )

    def __init__(
        self,
        connection: Connection,
        loop: AbstractEventLoop,
        method: str,
        target: bytes,
        headers: list[Header],
        *,
        fields: Mapping[bytes, bytes] | None = None,
        client: str = "",
        keep_alive: bool = True,
        expects: bool = False,
        chunked: bool = True,
        head_only: bool = False,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.fields = dict(headers) if fields is None else fields
        self.names: Mapping[str, Any] = {}
        self.client = client
        self.keep_alive = keep_alive
        self.expects = expects  # a `100 Continue` before it sends its body
        self.chunked = chunked  # the client understands a reply in chunks (HTTP/1.1)
        self.head_only = head_only
        self.task: Task[None] | None = None  # that answers it
        self.disconnected = False
        self.answered = False
        self._connection = connection
        self._loop = loop
        self._parts: list[bytes] = []
        self._unread = 0
        self._begun = False  # something of the body has come
        self._more = True
        self._body_seconds = body_seconds
        self._waited = 0.0  # seconds of them that are gone
        self._news: Future[None] | None = None
        self._is_watched = False

    # What the connection tells ---------------------------------------------------------------------------------------

    def feed(self, part: bytes) -> None:
        """Take the next part of the body; it is dropped once there is an answer."""
        if self.answered:
            return
        self._begun = True
        self._parts.append(part)
        self._unread += len(part)
        if self._unread > HIGH_WATER:
            self._connection.hold()
        if self._news is not None:
            self._wake()

    def complete(self) -> None:
        """Note that the body is complete."""
        self._more = False
        if self._news is not None:
            self._wake()

    @property
    def has_not_begun(self) -> bool:
        """Whether somebody waits for the body and nothing of it has come."""
        return not self._begun and self._news is not None and not self._news.done()

    def refuse(self, error: LatebindError) -> None:
        """Raise this error in whoever waits for the body. The connection is closed after the reply."""
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

    @property
    def region(self) -> str | None:
        """The shared memory region of the path, if it names one."""
        region: str | None = self.names.get("region")
        return region

    def watch(self) -> None:
        """From now on, cancel the task that answers when the client hangs up, and not only when it reads the body."""
        self._is_watched = True

    async def receive(self) -> tuple[bytes, bool]:
        """Return what has arrived of the body, and whether there may be more; waits while there is nothing new.

        Raises `ClientGone`, `BodyTimeout` and the error of `refuse`.
        """
        if not self._parts and self._more and not self.disconnected:
            self._connection.go_on()
            await self._wait()
        if self.disconnected:
            raise ClientGone
        parts, self._parts, self._unread = self._parts, [], 0
        if not self._more:
            self._connection.read_on()  # otherwise a hang-up of the client would not be noticed
        return parts[0] if len(parts) == 1 else b"".join(parts), self._more

    async def _wait(self) -> None:
        """Wait for news of the body. Only who has to wait gets a timer: a usual body comes with its head."""
        self._news = news = self._loop.create_future()
        timer = self._loop.call_later(max(0.0, self._body_seconds - self._waited), self._time_out)
        begun = time.monotonic()
        try:
            await news
        finally:
            timer.cancel()
            self._waited += time.monotonic() - begun

    def _time_out(self) -> None:
        self.refuse(BodyTimeout(f"the body did not arrive within {self._body_seconds:g} s"))

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class Held:
    """Counts the bytes in memory of all bodies that are collected before they can be read, such as JSON."""

    def __init__(self, most: int) -> None:
        self.bytes = 0
        self._most = most

    def take(self, size: int) -> None:
        """Count `size` more bytes. Raises `Refused`, and counts none of them, if that would be too many."""
        if self.bytes + size > self._most:
            raise Refused(f"the requests that are under way have more than {self._most} bytes: try again later")
        self.bytes += size

    def give_back(self, size: int) -> None:
        """Count `size` fewer bytes: they are not needed any more."""
        self.bytes -= size


class Body:
    """Reads a body piece by piece. Raises `TooLarge`, `UnsupportedEncoding` and what `Request.receive` raises.

    `size` is the number of bytes that the headers announce, or None; `arrived` is how many have arrived. For a
    compressed body, bytes are those after decompression, which raises `InvalidRequest` too. Nothing is read before it
    is asked for, so TCP holds back a client whose body has to wait. Before this, the event loop has read from the
    socket into a `bytes`, and the parser has cut the part of the body out of it.

    What `read` collects from several pieces is counted in `held` until `release`; `read` raises `Refused` if that has
    no room for it. Where `as_sent`, the body is not decompressed.
    """

    __slots__ = ("_collected", "_held", "_limits", "_more", "_receive", "_unread", "arrived", "size")

    def __init__(self, request: Request, limits: Limits, held: Held | None = None, *, as_sent: bool = False) -> None:
        length = request.fields.get(b"content-length")
        self.size = None if length is None else int(length)
        self.arrived = 0
        self._receive: Receive = request.receive
        self._limits = limits
        self._held = held or Held(limits.body_bytes)
        self._collected = 0  # bytes, counted in `_held`
        self._unread = NOTHING
        self._more = True
        if self.size is not None and self.size > limits.body_bytes:
            raise body_too_large(limits)
        encoding = request.fields.get(b"content-encoding", b"").strip().lower()
        if encoding not in (b"", b"identity") and not as_sent:
            self._receive, self.size = Inflater(request.receive, encoding, limits).receive, None

    async def read(self, size: int | None = None) -> bytes:
        """Return the next `size` bytes, or all; fewer if the body ends before."""
        missing = sys.maxsize if size is None else size
        # A piece has at most what is read of a connection at once, and connections are bounded.
        if await self.available() and (len(self._unread) >= missing or not self._more):
            return bytes(self._cut(missing))
        parts: list[memoryview] = []
        while missing and await self.available():
            part = self._cut(missing)
            self._held.take(len(part))
            self._collected += len(part)
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def release(self) -> None:
        """Stop counting what was collected, because the request has ended."""
        self._held.give_back(self._collected)
        self._collected = 0

    async def read_into(self, place: memoryview) -> bool:
        """Fill `place` with the next bytes, and tell whether the body had that many."""
        filled = 0
        while filled < len(place) and await self.available():
            part = self._cut(len(place) - filled)
            place[filled : filled + len(part)] = part
            filled += len(part)
        return filled == len(place)

    async def measure(self) -> int:
        """Return how many bytes the body has. If its headers do not say, the whole body is read first."""
        if self.size is None:
            whole = await self.read()
            self._unread, self.size = memoryview(whole), len(whole)
        return self.size

    async def available(self) -> bool:
        """Tell whether there is more of the body; waits until that is known."""
        while not self._unread and self._more:
            piece, self._more = await self._receive()
            self._unread = memoryview(piece)
            self.arrived += len(piece)
            if self.arrived > self._limits.body_bytes:
                raise body_too_large(self._limits)
        return bool(self._unread)

    def _cut(self, most: int) -> memoryview:
        unread = self._unread
        if len(unread) <= most:
            self._unread = NOTHING
            return unread
        self._unread = unread[most:]
        return unread[:most]


class Reply(msgspec.Struct, frozen=True):
    """A reply. `lines` are headers in their final form, as bytes. With `pieces`, these are its body, one after another.

    They end early, and the connection is closed, where something goes wrong after the head was sent.
    """

    body: bytes = b""
    headers: Headers = ()
    status: int = 200
    lines: bytes = b""
    pieces: AsyncGenerator[bytes] | None = None


def json_reply(value: object) -> Reply:
    """Return a reply with this value."""
    return Reply(orjson.dumps(value), JSON)


def reply_to(error: Exception) -> Reply:
    """Return the reply to a request that failed; an error that clients must not see is logged and gets an id."""
    return error_reply(for_clients(error))


def error_reply(error: LatebindError) -> Reply:
    """Return the reply for an error that clients may see."""
    headers = (*JSON, *MORE.get(error.http_status, ()))
    if isinstance(error, Loading):
        headers = (*JSON, (b"retry-after", b"%d" % max(1, ceil(error.seconds))))
    if isinstance(error, MethodNotAllowed):
        headers = (*headers, (b"allow", ", ".join(error.allowed).encode()))
    text = str(error).encode("utf-8", "replace").decode()  # orjson takes no lone surrogates
    return Reply(orjson.dumps({"error": text}), headers, error.http_status)


class Head(NamedTuple):
    """What a head says. `headers` and `fields` are those of `Request`; requests with the same head share them.

    `expects` is whether the client waits for a `100 Continue` before it sends its body (RFC 9110, 10.1.1).
    """

    path: bytes
    headers: list[Header]
    fields: Mapping[bytes, bytes]
    expects: bool


@lru_cache(256)  # of 16 KiB at most (`Limits.header_bytes`); a client sends the same head again and again
def head_of(version: str, target: bytes, headers: Headers) -> Head:
    """Return what a head says whose `headers` are as they came. Raises what `read_head` raises."""
    lower = [(name.lower(), value.strip(b" \t")) for name, value in headers]
    path, fields = read_head(version, target, lower)
    expects = version != "1.0" and any(name == b"expect" and value.lower() == b"100-continue" for name, value in lower)
    return Head(path, lower, fields, expects)


def read_head(version: str, target: bytes, headers: list[Header]) -> tuple[bytes, dict[bytes, bytes]]:
    """Return the path that a request of this HTTP `version` asks for, without its query, and its headers by name.

    What one server reads otherwise than the next is refused (RFC 9110, RFC 9112), as far as the parser lets it through:
    request lines, names of headers, lengths and chunks are the parser's. `headers` have names in lower case; several
    values of one are joined by commas. Where the target is a whole URL, its host takes the place of the `Host` header
    (RFC 9112, 3.2.2). Raises `InvalidRequest` and `UnsupportedEncoding`; the connection is closed after either.
    """
    if version not in {"1.0", "1.1"}:
        raise InvalidRequest(f"the request is HTTP/{version}, which this server does not speak: send HTTP/1.1")
    fields = dict(headers)
    if len(fields) < len(headers):
        fields = {}
        for name, value in headers:
            if name in fields and name in SINGLE:
                raise InvalidRequest(f"the request has several {name.decode().title()} headers: send one")
            fields[name] = b"%b, %b" % (fields[name], value) if name in fields else value
    coding, host = fields.get(b"transfer-encoding"), fields.get(b"host")
    if coding is not None:
        _check_coding(version, coding)
    path, authority = _parts(target)
    if host is not None:
        _check_authority(host)
        if authority is not None:
            fields[b"host"] = authority
            headers[:] = [(name, authority if name == b"host" else value) for name, value in headers]
    elif version == "1.1":
        raise InvalidRequest("the request has no Host header, which HTTP/1.1 demands: name the host that is called")
    return path, fields


def _check_coding(version: str, coding: bytes) -> None:
    """Refuse every transfer coding but `chunked`; the parser has refused those where `chunked` is not the last."""
    if version == "1.0":  # RFC 9112, 6.1: its length is not certain
        raise InvalidRequest("Transfer-Encoding is no part of HTTP/1.0: send HTTP/1.1 or a Content-Length")
    if coding.lower() != b"chunked":
        raise UnsupportedEncoding(
            "no Transfer-Encoding but chunked is accepted: send Transfer-Encoding: chunked, and compress the body by"
            " Content-Encoding"
        )


def _parts(target: bytes) -> tuple[bytes, bytes | None]:
    """Return the path of a target and, where that is a whole URL, the host with its port."""
    if target.startswith(b"/"):
        return target.partition(b"?")[0], None
    found = ABSOLUTE.match(target)
    if found is None or not found[1]:
        raise InvalidRequest("the target of the request is no path: send one that begins with '/'")
    _check_authority(found[1])
    return found[2] or b"/", found[1]


def _check_authority(value: bytes) -> None:
    if not AUTHORITY.fullmatch(value):
        raise InvalidRequest("the Host of the request is not HOST or HOST:PORT")
