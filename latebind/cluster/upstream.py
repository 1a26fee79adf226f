"""A connection from the ingress to a replica: HTTP/1.1 requests one after another, each with one reply."""

import asyncio
import socket
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import httptools

from latebind.server.rest.request import Headers, Reply

Parts = Sequence[bytes]  # a request as it is written: its head, then its body

STATUS = b"latebind-status"  # header: the status of a gRPC call that failed; the reply's own status is 200
OURS = frozenset((b"connection", b"content-length", b"date", b"transfer-encoding"))  # headers that each door sets
CONNECT_SECONDS = 1.0  # a machine that has gone answers nothing at all
TOGETHER = 1 << 15  # a body of up to so many bytes is joined with the head, for one write
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))  # a machine that has gone


def failed(reply: Reply) -> bool:
    """Tell whether a replica could not do what it was asked to do."""
    return reply.status != 200 or any(name == STATUS for name, _ in reply.headers)


class Lost(Exception):
    """The connection could not be made, or was lost before the reply was complete."""


OnReply = Callable[[Reply | Lost], None]


class Upstream(asyncio.Protocol):
    """One connection, `usable` until it is lost. A request is sent only after the reply to the one before.

    `moved` is when something was last sent or received (`time.monotonic()`).
    """

    def __init__(self) -> None:
        self.usable = True
        self.moved = time.monotonic()
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._on_reply: OnReply | None = None

    @classmethod
    async def open(cls, host: str, port: int, local: str = "") -> "Upstream":
        """Connect, through the Unix socket `local` if the replica is on this machine. Raises `Lost`."""
        if local and (line := _here(local)) is not None:
            return (await asyncio.get_running_loop().create_unix_connection(cls, sock=line))[1]
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                transport, upstream = await asyncio.get_running_loop().create_connection(cls, host, port)
        except OSError as error:  # a `TimeoutError` is one too
            raise Lost(f"{host} port {port} cannot be reached: {error.strerror or 'it does not answer'}") from None
        line = transport.get_extra_info("socket")
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in KEEPALIVE:
            line.setsockopt(socket.IPPROTO_TCP, option, value)
        return upstream

    async def ask(self, parts: Parts) -> Reply:
        """Send a request and return its reply. Raises `Lost`; cancelling the call closes the connection."""
        if not self.usable:
            raise Lost("the connection is closed")
        answered: asyncio.Future[Reply] = self._loop.create_future()
        self.send(parts, partial(_settle, answered))
        try:
            return await answered
        except BaseException:
            self.abort()
            raise
        finally:
            del answered  # its error refers to this frame: without this they form a reference cycle

    def send(self, parts: Parts, on_reply: OnReply) -> None:
        """Send a request; `on_reply` is called with the reply, or with `Lost`."""
        self._on_reply = on_reply
        self.moved = time.monotonic()
        if sum(map(len, parts)) <= TOGETHER:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)

    def abort(self) -> None:
        """Close the connection. The replica cancels the call then, and `on_reply` is not called."""
        self.usable = False
        self._on_reply = None
        self._transport.abort()

    def lose(self, why: str) -> None:
        """Close the connection and report the loss: there will be no answer."""
        self.usable = False
        self._tell(Lost(why))
        self._transport.abort()

    # The transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to whoever waits for a reply."""
        self.usable = False
        self._tell(Lost(f"the connection was closed: {exc or 'by the replica'}"))

    def data_received(self, data: bytes) -> None:
        """Feed data to the parser."""
        self.moved = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._tell(Lost(f"the reply is no HTTP: {error}"))
            self.abort()

    # The parser's calls

    def on_message_begin(self) -> None:
        """Begin a reply."""
        self._headers, self._body = [], []

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take in a header."""
        if name not in OURS:
            self._headers.append((name, value))

    def on_body(self, body: bytes) -> None:
        """Take in a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """Hand the reply over."""
        self.usable = self.usable and self._parser.should_keep_alive()
        headers: Headers = tuple(self._headers)
        self._tell(Reply(b"".join(self._body), headers, self._parser.get_status_code()))

    def _tell(self, what: Reply | Lost) -> None:
        on_reply, self._on_reply = self._on_reply, None
        if on_reply is not None:
            on_reply(what)


def _here(local: str) -> socket.socket | None:
    """Return a connection to a Unix socket, or None if that is not on this machine or takes none now."""
    line = socket.socket(socket.AF_UNIX)
    line.setblocking(False)
    try:
        line.connect(local)
    except OSError:
        line.close()
        return None
    return line


def _settle(answered: asyncio.Future[Reply], what: Reply | Lost) -> None:
    if answered.done():
        return
    if isinstance(what, Lost):
        answered.set_exception(what)
    else:
        answered.set_result(what)
