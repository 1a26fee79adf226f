"""Takes calls in, whatever server carries them: each is counted, admitted and ends with one answer or one status."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from latebind.domain.errors import LatebindError, Refused, Unavailable
from latebind.server.access import Guard
from latebind.server.quick import Quick
from latebind.server.rpc.desk import Caller, Desk, Streaming
from latebind.server.rpc.faults import told
from latebind.server.rpc.routes import Answer, Method, Stream
from latebind.server.rpc.shortcut import Shortcut, Then


class CallFailed(Exception):
    """The status and the message that a call ends with instead of an answer."""

    def __init__(self, error: Exception) -> None:
        self.status, self.text = told(error)
        super().__init__(self.status, self.text)


class Reception:
    """One for a door. Calls are answered until `drain`, and after `give_up` told that there is no time left."""

    def __init__(self, desk: Desk, guard: Guard) -> None:
        self.come = 0  # calls, but those that `take` took
        self._desk = desk
        self._guard = guard
        self._most_bytes = desk.limits.held_bytes
        self._shortcut = Shortcut(desk)
        self._under_way: set[asyncio.Task[Any]] = set()
        self._streams: set[Stream] = set()
        self._bytes = 0
        self._draining = False
        self._over = False

    def drain(self) -> None:
        """Have streams take no more requests; single calls still learn from the service that it drains."""
        self._draining = True
        for stream in self._streams:
            stream.end()

    async def emptied(self, seconds: float) -> None:
        """Return when nobody is under way, or after so many seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._under_way or self._shortcut.busy:
                    await self._shortcut.emptied()
                    if self._under_way:
                        await asyncio.wait(self._under_way)

    def give_up(self) -> None:
        """Tell all that are still under way that there is no time left."""
        self._over = True
        self._shortcut.give_up()
        for task in self._under_way:
            task.cancel()

    def hold(self, size: int) -> None:
        """Count bytes of requests that are here, or that are gone where `size` is negative."""
        self._bytes += size

    def check_bytes(self) -> None:
        """Raise `Refused` where the requests that are here have too many bytes together."""
        if self._bytes > self._most_bytes:
            raise Refused(f"the requests that are under way have more than {self._most_bytes} bytes: try again later")

    def take(self, method: Method, data: bytes, caller: Caller, then: Then) -> Quick | None:
        """Begin a single call that waits for nothing but the engine, `then` being told what came of it.

        None for any other: `answer` has its response. Whoever read the bytes holds them.
        """
        if not method.infers or self._draining:
            return None
        try:
            self._admit(method, caller)
        except LatebindError:  # which `answer` tells
            return None
        return self._shortcut.take(data, caller, then)

    async def answer(self, method: Method, answer: Answer, data: bytes, caller: Caller) -> bytes:
        """Return the response to a single call, whose bytes whoever read them holds. Raises `CallFailed`."""
        with self._call(method, caller):
            return await answer(self._desk, data, caller)

    async def follow(self, method: Method, caller: Streaming) -> None:
        """Serve a stream, which is told when the door closes. Raises `CallFailed`."""
        assert method.stream is not None, f"{method.path} is no stream"
        with self._call(method, caller):
            stream = method.stream(self._desk, caller)
            self._streams.add(stream)
            if self._draining:
                stream.end()
            try:
                await stream.serve()
            finally:
                self._streams.discard(stream)

    @contextmanager
    def _call(self, method: Method, caller: Caller) -> Iterator[None]:
        """Have a call counted as long as it lasts; whatever ends it is told."""
        task = asyncio.current_task()
        assert task is not None
        self.come += 1
        self._under_way.add(task)
        try:
            self._admit(method, caller)
            yield
        except asyncio.CancelledError:
            if not self._over:
                raise
            raise CallFailed(Unavailable("the server shut down before it had the answer")) from None
        except Exception as error:  # the root of the call's task: report, answer, go on serving
            raise CallFailed(error) from None
        finally:
            self._under_way.discard(task)

    def _admit(self, method: Method, caller: Caller) -> None:
        """Raise where the call may not be made, or where there is too much already."""
        if self._guard.asks(method.access):
            self._guard.check(method.access, caller.header("authorization").encode() or None)
        self.check_bytes()
