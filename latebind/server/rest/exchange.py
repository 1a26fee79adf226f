"""One HTTP request as it comes in on its connection, and what may happen to whoever sent it meanwhile."""

from asyncio import AbstractEventLoop, Future, Task, current_task
from typing import Any, Protocol

from latebind.server.rest.messages import DISCONNECT, Message

HIGH_WATER = 1 << 16  # bytes of a body that nobody has read yet; past them the client has to wait


class Line(Protocol):
    """The connection, as far as a request needs it."""

    def hold(self) -> None:
        """Read no more for now."""

    def read_on(self) -> None:
        """Read again."""

    def go_on(self) -> None:
        """Read on, and tell a client that waits for this to send its body."""


class Exchange:
    """A request whose head is complete. Its body may be under way.

    `target` is the path as it was sent, without a query; `headers` have lower-case names; `client` is the address that
    it came from. `disconnected` tells whether the client has hung up. `head` is all before the body as it came, where
    that was at the beginning of a piece and within it; else it is empty.
    """

    __slots__ = (
        "_line",
        "_loop",
        "_more",
        "_news",
        "_parts",
        "_unread",
        "_waiting",
        "answered",
        "client",
        "disconnected",
        "expects",
        "head",
        "headers",
        "keep_alive",
        "method",
        "target",
    )  # fmt: skip

    def __init__(
        self,
        line: Line,
        loop: AbstractEventLoop,
        method: str,
        target: bytes,
        headers: list[tuple[bytes, bytes]],
        *,
        client: str = "",
        keep_alive: bool = True,
        expects: bool = False,
        head: bytes = b"",
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.client = client
        self.keep_alive = keep_alive
        self.expects = expects  # to be told to go on before it sends its body
        self.head = head
        self.disconnected = False
        self.answered = False
        self._line = line
        self._loop = loop
        self._parts: list[bytes] = []
        self._unread = 0
        self._more = True
        self._news: Future[None] | None = None
        self._waiting: Task[Any] | None = None

    async def receive(self) -> Message:
        """Return what has come of the body since, or that the client has gone; waits where nothing has."""
        if not self._parts and self._more and not self.disconnected:
            self._line.go_on()
            self._news = self._loop.create_future()
            await self._news
        if self.disconnected:
            return DISCONNECT
        parts, self._parts, self._unread = self._parts, [], 0
        if not self._more:
            self._line.read_on()  # else nobody would hear that the client hangs up
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": self._more}

    def feed(self, part: bytes) -> None:
        """Take in the next part of the body; nobody wants it once there is an answer."""
        if self.answered:
            return
        self._parts.append(part)
        self._unread += len(part)
        if self._unread > HIGH_WATER:
            self._line.hold()
        self._wake()

    def complete(self) -> None:
        """Note that the body is whole."""
        self._more = False
        self._wake()

    def watch(self) -> None:
        """Have the running task cancelled when the client hangs up from now on.

        ASGI's own way, to wait for `http.disconnect`, takes a second task for each request: a fifth of the door's work.
        """
        self._waiting = current_task(self._loop)

    def unwatch(self) -> None:
        """Let the task be."""
        self._waiting = None

    def disconnect(self) -> None:
        """Note that the client has hung up."""
        self.disconnected = True
        self._wake()
        if self._waiting is not None:
            self._waiting.cancel()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)
