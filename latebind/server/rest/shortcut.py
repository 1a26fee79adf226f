"""The short way of an infer call: no parser, no task. Most calls of a busy server take it.

It is open to a call whose head came before, word for word, and was answered, whose body is there with the head, and
that finds places at once. All others go the long way, which also tells what is wrong with them.
"""

import asyncio
from typing import Protocol

import msgspec

from latebind.domain.errors import Unavailable, UserError
from latebind.server.calls import Call
from latebind.server.gateway import Answer, Claim
from latebind.server.rest.codec import Codec
from latebind.server.rest.compression import SMALL, accepted
from latebind.server.rest.desk import Desk
from latebind.server.rest.filling import fill_now
from latebind.server.rest.infer import as_accepted, infer_reply, json_bytes
from latebind.server.rest.request import Reply, Request, reply_to

END = b"\r\n\r\n"
MOST_HEADS = 1024
LONGEST_HEAD = 4096
OTHERWISE = frozenset({b"transfer-encoding", b"content-encoding", b"traceparent"})  # what asks for the long way


class Line(Protocol):
    """The connection, as far as such a call needs it."""

    def reply(self, to: object, reply: Reply) -> None:
        """Send the reply to a call, if the client is still there."""


class Known(msgspec.Struct, frozen=True, gc=False):
    """What the head of a call says; its body has `size` bytes, the first `json_bytes` of which are JSON (None: all)."""

    model: str
    version: str | None
    size: int
    json_bytes: int | None
    accepts: bytes | None


class Shortcut:
    """Knows the heads of calls, and which calls are on the short way. One for a door."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._heads: dict[bytes, Known] = {}
        self._under_way: set[Quick] = set()

    def learn(self, request: Request) -> None:
        """Note the head of a call that was answered; calls with the same one need not be looked at again."""
        exchange = request.exchange
        head, names = exchange.head, [name for name, _ in exchange.headers]
        if not 0 < len(head) <= LONGEST_HEAD or head in self._heads or not exchange.keep_alive:
            return
        size = request.header(b"content-length")
        if exchange.expects or size is None or not OTHERWISE.isdisjoint(names):
            return
        if head.count(b"\n") != len(names) + 2:  # lines that end otherwise: it is not sure where the head does
            return
        if len(self._heads) == MOST_HEADS:
            self._heads.clear()
        accepts = request.header(b"accept-encoding")
        known = Known(
            request.model, request.version, int(size), json_bytes(request), accepts if accepted(accepts) else None
        )
        self._heads[head] = known

    def take(self, line: Line, data: bytes, client: str) -> "Quick | None":
        """Begin to answer what has come on an idle connection; None where that goes the long way, untouched."""
        body = data.find(END) + len(END)
        known = self._heads.get(data[:body])
        if known is None or len(data) - body != known.size:
            return None
        spec = self._desk.service.at_once(known.model, known.version)
        if spec is None:
            return None
        codec = self._desk.codec(spec)
        split = body + (known.size if known.json_bytes is None else known.json_bytes)
        try:
            call = codec.decode(data[body:split], len(data) - split)
        except UserError:
            return None
        claim = None if call.elsewhere else self._desk.service.claim_now(spec, call)
        if claim is None:
            return None
        try:
            fill_now(call, data, split, claim.rows)
        except UserError:
            claim.release()
            return None
        return Quick(self._desk, self._under_way, line, known, codec, call, claim, client)

    def give_up(self) -> None:
        """Tell all who are on the way that there is no time left."""
        for quick in tuple(self._under_way):
            quick.give_up()


class Quick:
    """A call that the engine has. Its connection begins no other one meanwhile."""

    __slots__ = ("_all", "_call", "_claim", "_client", "_codec", "_desk", "_known", "_line", "_packing")

    expects = False

    def __init__(
        self,
        desk: Desk,
        every: "set[Quick]",
        line: Line,
        known: Known,
        codec: Codec,
        call: Call,
        claim: Claim,
        client: str,
    ) -> None:
        self._desk = desk
        self._all = every
        self._line = line
        self._known = known
        self._codec = codec
        self._call = call
        self._claim = claim
        self._client = client
        every.add(self)

    def begin(self) -> None:
        """Send the call; nothing is raised, for there is the reply to tell of it."""
        try:
            self._desk.service.dispatch(self._claim, self._call, self._end)
        except Exception as error:  # the root of the call: report, answer, go on serving
            self._end(error)

    def lose(self) -> None:
        """The client has hung up: nobody wants the answer, if there is none yet."""
        if self in self._all:
            self._all.discard(self)
            self._claim.cancel()
            self._claim.release()

    def give_up(self) -> None:
        """Answer that there is no time left."""
        self._claim.cancel()
        self._end(Unavailable("the server shut down before it had the answer"))

    def _end(self, what: Answer | Exception) -> None:
        """Reply. Nothing is raised: whoever calls has other calls to look after."""
        self._all.discard(self)
        answer = what if isinstance(what, Answer) else None
        try:
            reply = (
                infer_reply(self._desk, self._codec, self._call, what) if isinstance(what, Answer) else reply_to(what)
            )
        except Exception as error:  # the root of the call, too
            reply = reply_to(error)
        self._desk.service.let_go(self._claim, answer, self._client)
        self._desk.replies[reply.status] += 1
        if self._known.accepts is None or len(reply.body) < SMALL:
            self._line.reply(self, reply)
        else:
            self._packing = asyncio.get_running_loop().create_task(self._pack(reply, self._known.accepts))

    async def _pack(self, reply: Reply, accepts: bytes) -> None:
        self._line.reply(self, await as_accepted(accepts, reply))
