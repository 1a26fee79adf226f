"""A call that the engine has and no task waits for: what comes of it is told by a call."""

import asyncio
from typing import Any

from latebind.domain.errors import Unavailable
from latebind.server.calls import Call
from latebind.server.gateway import Answer, Claim
from latebind.server.service import Service

Outcome = Answer | Exception


class DirectCalls:
    """Those of a transport that are under way."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.under_way: set[DirectCall] = set()
        self._emptied: asyncio.Event | None = None  # set once somebody waits for the last one

    async def emptied(self) -> None:
        """Return when none is under way."""
        if self.under_way:
            self._emptied = self._emptied or asyncio.Event()
            await self._emptied.wait()

    def leave(self, direct_call: "DirectCall") -> None:
        """One is no longer under way."""
        self.under_way.discard(direct_call)
        if self._emptied is not None and not self.under_way:
            self._emptied.set()
            self._emptied = None

    def give_up(self) -> None:
        """Tell all that there is no time left."""
        for direct_call in tuple(self.under_way):
            direct_call.give_up()


class DirectCall:
    """One call, with its places filled. Each transport has a class of its own, which says how it is answered."""

    __slots__ = ("_call", "_calls", "_claim", "_client")

    expects = False  # to be told to go on before it sends its body

    def __init__(self, calls: DirectCalls, claim: Claim, call: Call, client: str) -> None:
        self._calls = calls
        self._claim = claim
        self._call = call
        self._client = client
        calls.under_way.add(self)

    def encode(self, what: Outcome) -> Any:
        """Return a reply made of what came of it, while the places are still its own. Raises nothing."""
        raise NotImplementedError

    def send(self, reply: Any) -> None:
        """Send that reply, if the client is still there. Raises nothing."""
        raise NotImplementedError

    def begin(self) -> None:
        """Send it; nothing is raised, for there is the reply to tell."""
        try:
            self._calls.service.dispatch(self._claim, self._call, self._end)
        except Exception as error:  # the root of the call: its client is told, others go on
            self._end(error)

    def disconnect(self) -> None:
        """Nobody wants the answer, if there is none yet."""
        if self in self._calls.under_way:
            self._calls.leave(self)
            self._claim.cancel()
            self._claim.release()

    def give_up(self) -> None:
        """Tell that there is no time left."""
        self._claim.cancel()
        self._end(Unavailable("the server shut down before it had the answer"))

    def _end(self, what: Outcome) -> None:
        self._calls.leave(self)
        self.send(self.encode(what))
        self._calls.service.release(self._claim, what if isinstance(what, Answer) else None, self._client)
