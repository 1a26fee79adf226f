"""The ingress's connections to one replica: HTTP/1.1 requests one after another on each, each with one reply."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import cast

import httptools

from latebind.cluster.placement import Report
from latebind.cluster.routing import Replica
from latebind.server.rest.messages import Reply

Parts = Sequence[bytes]  # a request as it is written: its head, then its body

STATUS = b"latebind-status"  # header: the status of a gRPC call that failed; the reply's own status is 200
OURS = frozenset((b"connection", b"content-length", b"date", b"transfer-encoding"))  # headers that each frontend sets
CONNECT_SECONDS = 1.0  # a machine that is gone does not answer at all
TOGETHER = 1 << 15  # bytes up to which a body is joined with the head, for one write
SILENT_SECONDS = 0.5  # without data from a replica that has calls; then it is asked whether it lives
ALIVE_SECONDS = 1.0  # that it has for the answer
LIVE: Parts = (b"GET /v2/health/live HTTP/1.1\r\nhost: replica\r\ncontent-length: 0\r\n\r\n",)


class Lost(Exception):
    """The connection could not be made, or was lost before the reply was complete."""


def failed(reply: Reply) -> bool:
    """Return whether a replica could not do what it was asked to do."""
    return reply.status != 200 or any(name == STATUS for name, _ in reply.headers)


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What Ray reports about a running replica: its name, the address of its frontend, and its last report."""

    name: str
    host: str
    port: int
    report: Report | None = None


class Upstream(asyncio.Protocol):
    """One connection, `usable` until it is lost. A request is sent only after the reply to the one before.

    `moved` is when something was last sent or received (`time.monotonic()`).
    """

    def __init__(self) -> None:
        self.usable = True
        self.moved = time.monotonic()
        self._parser = httptools.HttpResponseParser(self)
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._answered: asyncio.Future[Reply] | None = None

    @classmethod
    async def open(cls, host: str, port: int) -> "Upstream":
        """Connect. Raises `Lost`."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                _, upstream = await asyncio.get_running_loop().create_connection(cls, host, port)
        except OSError as error:  # a `TimeoutError` is one too
            raise Lost(f"{host} port {port} cannot be reached: {error.strerror or 'it does not answer'}") from None
        return upstream

    async def ask(self, parts: Parts) -> Reply:
        """Send a request and return its reply. Raises `Lost`; cancelling the call closes the connection."""
        if not self.usable:
            raise Lost("the connection is closed")
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._answered = answered
        self.moved = time.monotonic()
        if sum(map(len, parts)) <= TOGETHER:
            self._transport.write(b"".join(parts))
        else:
            self._transport.writelines(parts)
        try:
            return await answered
        except BaseException:
            self.lose("the call has ended")
            raise
        finally:
            del answered  # its error refers to this frame: without this they form a reference cycle

    def lose(self, why: str) -> None:
        """Close the connection; a task that waits for a reply gets `Lost`, and the replica cancels the call."""
        self.usable = False
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(Lost(why))
        self._answered = None
        self._transport.abort()

    # Called by the transport and the parser

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the loss to the tasks that wait for a reply."""
        self.lose(f"the connection was closed: {exc or 'by the replica'}")

    def data_received(self, data: bytes) -> None:
        """Feed data to the parser."""
        self.moved = time.monotonic()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.lose(f"the reply is not HTTP: {error}")

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
        reply = Reply(b"".join(self._body), tuple(self._headers), self._parser.get_status_code())
        self._headers, self._body = [], []
        answered, self._answered = self._answered, None
        if answered is not None and not answered.done():
            answered.set_result(reply)


class Peer(Replica):
    """One replica, with the connections to it. It gets calls once it `serves`."""

    def __init__(self, info: ReplicaInfo, *, serves: bool = True) -> None:
        super().__init__(info.name, info.report)
        self.serves = serves
        self.catching_up: asyncio.Task[None] | None = None  # sends it what clients loaded, before it serves
        self._place = info.host, info.port
        self._idle: list[Upstream] = []
        self._busy: set[Upstream] = set()
        self._checking: asyncio.Task[None] | None = None

    async def ask(self, parts: Parts) -> Reply:
        """Return its reply to a request. Raises `Lost`."""
        self.under_way += 1
        try:
            while self._idle and not self._idle[-1].usable:
                self._idle.pop()
            upstream = self._idle.pop() if self._idle else await Upstream.open(*self._place)
            self._busy.add(upstream)
            try:
                return await upstream.ask(parts)
            finally:
                self._busy.discard(upstream)
                if upstream.usable:
                    self._idle.append(upstream)
        finally:
            self.under_way -= 1

    def check(self) -> None:
        """Find out whether it lives, if it has calls and sends nothing; call this often.

        A process may hang while its machine keeps its connections open.
        """
        waits = self._busy and max([upstream.moved for upstream in self._busy]) + SILENT_SECONDS < time.monotonic()
        if (waits or self.silent) and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check())

    async def _check(self) -> None:
        """Ask whether it lives. If there is no answer, the calls that it has are lost."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                upstream = await Upstream.open(*self._place)
                try:
                    await upstream.ask(LIVE)
                finally:
                    upstream.lose("it was only asked whether it lives")
            self.silent = False
        except (Lost, TimeoutError):
            self.silent = True
            for busy in tuple(self._busy):
                busy.lose(f"it has sent nothing for {SILENT_SECONDS + ALIVE_SECONDS:g} s")

    def suspect(self, until: float) -> None:
        """Until then, give it calls only if there is no other replica; idle connections may be lost too."""
        self.suspect_until = until
        while self._idle:
            self._idle.pop().lose("it may be lost")

    def close(self) -> None:
        """Close the idle connections and end the tasks for this replica."""
        self.suspect(inf)
        for task in (self._checking, self.catching_up):
            if task is not None:
                task.cancel()
