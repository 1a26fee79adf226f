"""The ledger's HTTP client: any number of connections that are kept open, with one request at a time on each."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httptools

from latebind.bench.ledger.books import End, Ledger
from latebind.bench.ledger.questions import Manner, Question
from latebind.bench.ledger.wire import JSON_LENGTH, http_answer, http_error, http_request

MOST = 512  # connections; who finds none waits, and its seconds count
IDLE_SECONDS = 1.0  # a server may close an idle connection at any time: one that lay longer is not used again
REFUSED = (429, 503)
EXPIRED = 504


@dataclass(frozen=True, slots=True)
class Sending:
    """A request and its bytes."""

    question: Question
    data: bytes
    head: int


class HttpClient:
    """Sends requests and records their outcomes in a ledger."""

    def __init__(self, host: str, port: int, ledger: Ledger) -> None:
        self._host, self._port = host, port
        self.ledger = ledger
        self._loop = asyncio.get_running_loop()
        self._idle: deque[tuple[float, Connection]] = deque()
        self._waiting: deque[Sending] = deque()
        self._connecting: set[asyncio.Task[None]] = set()
        self._every: set[Connection] = set()
        self._count = 0

    def send(self, question: Question) -> None:
        """Send a request as soon as there is a connection for it."""
        sending = Sending(question, *http_request(question, f"{self._host}:{self._port}"))
        connection = self._free()
        if connection is not None:
            connection.send(sending)
            return
        self._waiting.append(sending)
        if self._count < MOST:
            self._open()

    def give_up(self, numbers: set[int]) -> None:
        """Close the connections on which these requests wait."""
        for connection in list(self._every):
            if connection.number in numbers:
                connection.drop()

    def close(self) -> None:
        """Close all connections."""
        for connection in list(self._every):
            connection.drop()

    def freed(self, connection: "Connection") -> None:
        """Take a connection whose request has been answered."""
        if self._waiting:
            connection.send(self._waiting.popleft())
        else:
            self._idle.append((self._loop.time(), connection))

    def gone(self, connection: "Connection") -> None:
        """Let go of a connection that is closed."""
        self._every.discard(connection)
        self._count -= 1
        if self._waiting and self._count < MOST:
            self._open()

    def _free(self) -> "Connection | None":
        while self._idle:
            since, connection = self._idle.pop()
            if connection.usable and self._loop.time() - since < IDLE_SECONDS:
                return connection
            connection.drop()
        return None

    def _open(self) -> None:
        self._count += 1
        task = self._loop.create_task(self._connect())
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self) -> None:
        try:
            _, connection = await self._loop.create_connection(lambda: Connection(self), self._host, self._port)
        except OSError as error:
            self._count -= 1
            if self._waiting:
                self.ledger.lose(self._waiting.popleft().question.number, f"no connection ({error})")
            return
        self._every.add(connection)
        self.freed(connection)


class Connection(asyncio.Protocol):
    """One connection: a parser for replies, and the request that is under way."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._ledger = client.ledger
        self._transport: Any = None
        self._question: Question | None = None
        self._parser: Any = None
        self._body = bytearray()
        self._json_bytes: int | None = None
        self._answered = False
        self._timer: asyncio.TimerHandle | None = None
        self._now: Callable[[], float] = asyncio.get_running_loop().time

    @property
    def usable(self) -> bool:
        """Whether a request can be sent."""
        return self._question is None and not self._transport.is_closing()

    @property
    def number(self) -> int:
        """The request that is under way, -1 for none."""
        return -1 if self._question is None else self._question.number

    def send(self, sending: Sending) -> None:
        """Send a request, or as much of it as its client does."""
        question = sending.question
        self._question = question
        if question.manner is Manner.BREAKS_OFF:
            self._transport.write(sending.data[: (sending.head + len(sending.data)) // 2])
            self._leave()
            return
        self._transport.write(sending.data)
        if question.manner is Manner.LEAVES:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(question.leaves, self._leave)

    def drop(self) -> None:
        """Close the connection; the outcome of its request is recorded already."""
        self._question = None
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = transport
        self._begin()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._broken(f"something that is no HTTP ({error})")
        if self._answered and not self._transport.is_closing():
            self._answered = False
            self._client.freed(self)  # not before all that came has been read: there may be a second answer in it

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._forget_timer()
        question, self._question = self._question, None
        if question is not None:
            self._ledger.lose(question.number, f"the server closed the connection ({exc or 'without a word'})")
        self._client.gone(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Called by the parser."""
        if name.lower() == JSON_LENGTH.encode():
            self._json_bytes = int(value)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        self._body += body

    def on_message_complete(self) -> None:
        """Called by the parser."""
        status, body, json_bytes = self._parser.get_status_code(), bytes(self._body), self._json_bytes
        question, self._question = self._question, None
        self._forget_timer()
        self._begin_body()
        if question is None:
            if not self._transport.is_closing():
                self._ledger.surplus(f"a reply {status} that nobody asked for: {body[:100]!r}")
            return
        self._take(question, status, json_bytes, body)
        self._answered = bool(self._parser.should_keep_alive())
        if not self._answered:
            self._transport.close()

    def _take(self, question: Question, status: int, json_bytes: int | None, body: bytes) -> None:
        number, now = question.number, self._now()
        if status == 200:
            self._ledger.answer(number, http_answer(question, json_bytes, body), now)
        elif status in REFUSED:
            self._ledger.refuse(number, End.REFUSED, now)
        elif status == EXPIRED:
            self._ledger.refuse(number, End.EXPIRED, now)
        else:
            self._ledger.fail(number, f"{status}: {http_error(body)}", now)

    def _leave(self) -> None:
        if self._question is not None:
            self._ledger.leave(self._question.number, self._now())
            self.drop()

    def _broken(self, why: str) -> None:
        if self._question is not None:
            self._ledger.fail(self._question.number, why, self._now())
        else:
            self._ledger.surplus(why)
        self.drop()

    def _begin(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._begin_body()

    def _begin_body(self) -> None:
        self._body = bytearray()
        self._json_bytes = None

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
