"""One HTTP request as its body arrives on its connection, and what happens if its client hangs up meanwhile."""

import time
from asyncio import AbstractEventLoop, Future, Task, current_task
from typing import Any, Final, Protocol

from latebind.domain.errors import LatebindError
from latebind.server.limits import BodyTimeout, Limits
from latebind.server.rest.messages import DISCONNECT, Message

BODY_SECONDS: Final = Limits().body_seconds
HIGH_WATER = 1 << 16  # unread bytes of a body beyond which reading from the client stops


class Line(Protocol):
    """What a request needs of its connection."""

    def hold(self) -> None:
        """Stop reading from the connection."""

    def read_on(self) -> None:
        """Read from the connection again."""

    def go_on(self) -> None:
        """Read again, and send `100 Continue` to a client that waits for it before it sends its body."""


class Exchange:
    """A request whose head is complete; its body may still be on its way.

    `target` is the path as sent, without the query string. `headers` have lower-case names. `client` is the address it
    came from. `disconnected` tells whether the client has hung up. `HEAD` is a `GET` whose reply is sent without its
    body (`head_only`). The client has `body_seconds` to send its body; time in which nobody waits for it does not
    count.
    """

    __slots__ = (
        "_begun",
        "_body_seconds",
        "_line",
        "_loop",
        "_more",
        "_news",
        "_parts",
        "_unread",
        "_waited",
        "_waiting",
        "answered",
        "chunked",
        "client",
        "disconnected",
        "expects",
        "head_only",
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
        chunked: bool = True,
        head_only: bool = False,
        body_seconds: float = BODY_SECONDS,
    ) -> None:
        self.method = method
        self.target = target
        self.headers = headers
        self.client = client
        self.keep_alive = keep_alive
        self.expects = expects  # a `100 Continue` before it sends its body
        self.chunked = chunked  # the client understands a reply in chunks (HTTP/1.1)
        self.head_only = head_only
        self.disconnected = False
        self.answered = False
        self._line = line
        self._loop = loop
        self._parts: list[bytes] = []
        self._unread = 0
        self._begun = False  # something of the body has come
        self._more = True
        self._body_seconds = body_seconds
        self._waited = 0.0  # seconds of them that are gone
        self._news: Future[None] | None = None
        self._waiting: Task[Any] | None = None

    async def receive(self) -> Message:
        """Return what has arrived of the body, or that the client has gone; waits while there is neither.

        Raises `BodyTimeout`, and the error of `refuse`.
        """
        if not self._parts and self._more and not self.disconnected:
            self._line.go_on()
            await self._wait()
        if self.disconnected:
            return DISCONNECT
        parts, self._parts, self._unread = self._parts, [], 0
        if not self._more:
            self._line.read_on()  # otherwise a hang-up of the client would not be noticed
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        return {"type": "http.request", "body": body, "more_body": self._more}

    def feed(self, part: bytes) -> None:
        """Take the next part of the body; it is dropped once there is an answer."""
        if self.answered:
            return
        self._begun = True
        self._parts.append(part)
        self._unread += len(part)
        if self._unread > HIGH_WATER:
            self._line.hold()
        self._wake()

    def complete(self) -> None:
        """Note that the body is complete."""
        self._more = False
        self._wake()

    @property
    def has_not_begun(self) -> bool:
        """Whether somebody waits for the body and nothing of it has come."""
        return not self._begun and self._news is not None and not self._news.done()

    def refuse(self, error: LatebindError) -> None:
        """Raise this error in whoever waits for the body. The connection is closed behind the reply."""
        if self._news is not None and not self._news.done():
            self.keep_alive = False
            self._news.set_exception(error)

    def watch(self) -> None:
        """From now on, cancel the running task when the client hangs up.

        ASGI's own way, waiting for `http.disconnect`, takes a second task for each request: a fifth of the door's work.
        """
        self._waiting = current_task(self._loop)

    def unwatch(self) -> None:
        """Do not cancel the task any more."""
        self._waiting = None

    def disconnect(self) -> None:
        """Note that the client has hung up."""
        self.disconnected = True
        self._wake()
        if self._waiting is not None:
            self._waiting.cancel()

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
