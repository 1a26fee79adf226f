"""A call that goes to the engine without a task: a callback sends the reply when the answer is there."""

import asyncio
from typing import Any

from latebind.domain.errors import Unavailable
from latebind.server.calls import Call
from latebind.server.gateway import Answer, Claim
from latebind.server.service import Service

Outcome = Answer | Exception


class DirectCalls:
    """The direct calls of one transport that are under way."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.under_way: set[DirectCall] = set()
        self._emptied: asyncio.Event | None = None  # set once somebody waits for the last one

    async def emptied(self) -> None:
        """Return when no call is under way."""
        if self.under_way:
            self._emptied = self._emptied or asyncio.Event()
            await self._emptied.wait()

    def leave(self, direct_call: "DirectCall") -> None:
        """Note that a call is no longer under way."""
        self.under_way.discard(direct_call)
        if self._emptied is not None and not self.under_way:
            self._emptied.set()
            self._emptied = None

    def give_up(self) -> None:
        """Answer all calls that are under way that there is no time left for them."""
        for direct_call in tuple(self.under_way):
            direct_call.give_up()


class DirectCall:
    """One call, with its slots filled. Each transport has a subclass that encodes and sends the reply."""

    __slots__ = ("_call", "_calls", "_claim", "_client")

    expects = False  # a `100 Continue` before it sends its body

    def __init__(self, calls: DirectCalls, claim: Claim, call: Call, client: str) -> None:
        self._calls = calls
        self._claim = claim
        self._call = call
        self._client = client
        calls.under_way.add(self)

    def encode(self, what: Outcome) -> Any:
        """Return the reply for an answer or an error, while the slots still hold the outputs. Must not raise."""
        raise NotImplementedError

    def send(self, reply: Any) -> None:
        """Send the reply, if the client is still there. Must not raise."""
        raise NotImplementedError

    def begin(self) -> None:
        """Send the call to the engine. An error becomes the reply; nothing is raised."""
        try:
            self._calls.service.dispatch(self._claim, self._call, self._end)
        except Exception as error:  # the root of the call: its client is told, others go on
            self._end(error)

    def disconnect(self) -> None:
        """Cancel the call, if it is still under way: its client has gone."""
        if self in self._calls.under_way:
            self._calls.leave(self)
            self._claim.cancel()
            self._claim.release()

    def give_up(self) -> None:
        """Cancel the call and answer that there is no time left."""
        self._claim.cancel()
        self._end(Unavailable("the server shut down before it had the answer"))

    def _end(self, what: Outcome) -> None:
        self._calls.leave(self)
        self.send(self.encode(what))
        self._calls.service.release(self._claim, what if isinstance(what, Answer) else None, self._client)
