"""Receives calls from either gRPC server: each is counted, admitted, and ends with one answer or one status."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from latebind.domain.errors import InvalidRequest, Refused, Unavailable
from latebind.server.access import Guard
from latebind.server.rpc.context import Caller, Context, Streaming
from latebind.server.rpc.faults import status_and_message
from latebind.server.rpc.routes import Answer, Method, Stream


class CallFailed(Exception):
    """The status and message with which a call ends that has no answer."""

    def __init__(self, error: Exception) -> None:
        self.status, self.text = status_and_message(error)
        super().__init__(self.status, self.text)


class Reception:
    """Receives the calls of one door: answers them until `drain`, and fails those left over at `give_up`."""

    def __init__(self, context: Context, guard: Guard) -> None:
        self._arrived = asyncio.Event()  # set by each call
        self._context = context
        self._guard = guard
        self._most_bytes = context.limits.held_bytes
        self._under_way: set[asyncio.Task[Any]] = set()
        self._streams: set[Stream] = set()
        self._bytes = 0
        self._draining = False
        self._over = False

    def drain(self) -> None:
        """End all streams soon. Single calls are still passed on; the service itself refuses them."""
        self._draining = True
        for stream in self._streams:
            stream.end()

    async def emptied(self, seconds: float) -> None:
        """Return when no call is under way, or after `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self._under_way:
                    await asyncio.wait(self._under_way)

    async def quiet(self, seconds: float) -> None:
        """Return when no call has arrived for so many seconds."""
        with suppress(TimeoutError):
            while True:
                self._arrived.clear()
                async with asyncio.timeout(seconds):
                    await self._arrived.wait()

    def give_up(self) -> None:
        """Fail all calls that are still under way: there is no time left."""
        self._over = True
        for task in self._under_way:
            task.cancel()

    def hold(self, size: int) -> None:
        """Count `size` more bytes of requests in memory; fewer if it is negative."""
        self._bytes += size

    def check_bytes(self) -> None:
        """Raise `Refused` if the requests in memory have too many bytes together."""
        if self._bytes > self._most_bytes:
            raise Refused(f"the requests that are under way have more than {self._most_bytes} bytes: try again later")

    async def answer(self, method: Method, answer: Answer, data: bytes, caller: Caller) -> bytes:
        """Return the response to a single call. The caller counts its bytes (`hold`). Raises `CallFailed`."""
        with self._call(method, caller):
            return await answer(self._context, data, caller)

    async def follow(self, method: Method, caller: Streaming) -> None:
        """Serve a stream until it ends or the door closes. Raises `CallFailed`."""
        assert method.stream is not None, f"{method.path} is no stream"
        with self._call(method, caller):
            stream = method.stream(self._context, caller)
            self._streams.add(stream)
            if self._draining:
                stream.end()
            try:
                await stream.serve()
            finally:
                self._streams.discard(stream)

    @contextmanager
    def _call(self, method: Method, caller: Caller) -> Iterator[None]:
        """Count a call as under way, admit it, and turn every error into `CallFailed`."""
        task = asyncio.current_task()
        assert task is not None
        self._arrived.set()
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
        """Raise if the caller has no permission, or if there are too many bytes already."""
        authorization = caller.header("authorization")
        if "," in authorization:  # which no token has in it
            raise InvalidRequest("the call has several values of authorization: send one")
        if self._guard.asks(method.access):
            self._guard.check(method.access, authorization.encode() or None)
        self.check_bytes()
