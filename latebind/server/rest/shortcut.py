"""The short way of an infer call: no parser, no task. Most calls of a busy server take it.

It is open to a call whose head came before, word for word, and was answered, whose body is there with the head, and
that finds places at once. All others go the long way, which also tells what is wrong with them.
"""

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from latebind.domain.errors import UserError
from latebind.server.calls import WAITED, Call
from latebind.server.gateway import Answer
from latebind.server.quick import Outcome, Quick, Quicks
from latebind.server.rest.codec import Codec
from latebind.server.rest.compression import SMALL, accepted
from latebind.server.rest.desk import Desk
from latebind.server.rest.filling import fill_now
from latebind.server.rest.infer import as_accepted, infer_reply, json_bytes
from latebind.server.rest.request import Reply, Request, reply_to

END = b"\r\n\r\n"
MOST_HEADS = 1024
LONGEST_HEAD = 4096
OTHERWISE = frozenset({b"transfer-encoding", b"content-encoding", b"traceparent", WAITED})  # what asks for the long way


class Line(Protocol):
    """The connection, as far as such a call needs it."""

    def reply(self, to: object, reply: Reply) -> None:
        """Send the reply to a call, if the client is still there."""

    def pass_on(self, to: object, written: bytes) -> None:
        """Send a reply as another door wrote it, to be followed by others on this connection."""


class Taken(Protocol):
    """A call on the short way."""

    expects: bool

    def begin(self) -> None:
        """Have it answered."""

    def lose(self) -> None:
        """Note that the client has hung up."""


class ShortWay(Protocol):
    """What may answer calls without parser and task."""

    def learn(self, request: Request) -> None:
        """Note the head of a call that was answered."""

    def take(self, line: Line, data: bytes, client: str) -> Taken | None:
        """Begin to answer what has come on an idle connection; None where that goes the long way, untouched."""

    def give_up(self) -> None:
        """Tell all who are on the way that there is no time left."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the head of a call says; its body has `size` bytes, the first `json_bytes` of which are JSON (None: all).

    `client` is the address that it came from, where that stands in the head.
    """

    model: str
    version: str | None
    size: int
    json_bytes: int | None
    accepts: bytes | None
    client: str | None


class Shortcut:
    """Knows the heads of calls, and which calls are on the short way. One for a door.

    Heads tell whose the calls are where it is `behind` an ingress.
    """

    def __init__(self, desk: Desk, *, behind: bool = False) -> None:
        self._desk = desk
        self._behind = behind
        self._heads: dict[bytes, Known] = {}
        self._quicks = Quicks(desk.service)
        self._packing: set[asyncio.Task[None]] = set()

    def learn(self, request: Request) -> None:
        """Note the head of a call that was answered; calls with the same one need not be looked at again."""
        head, size = request.exchange.head, size_beside(request)
        if size is None or head in self._heads:
            return
        if len(self._heads) == MOST_HEADS:
            self._heads.clear()
        accepts = request.header(b"accept-encoding")
        accepts, client = accepts if accepted(accepts) else None, request.client if self._behind else None
        self._heads[head] = Known(request.model, request.version, size, json_bytes(request), accepts, client)

    def take(self, line: Line, data: bytes, client: str) -> Quick | None:
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
        text, following = data[body:split], len(data) - split
        recalled = codec.recall(text, following) or _new(codec, text, following)
        if recalled is None:
            return None
        call, values = recalled
        claim = self._desk.service.claim_now(spec, call)
        if claim is None:
            return None
        if values:
            data, split = values, 0
        try:
            fill_now(call, data, split, claim)
        except UserError:
            claim.release()
            return None
        encode, send = partial(self._encode, codec, call), partial(self._send, line, known)
        client = client if known.client is None else known.client
        return Quick(self._quicks, claim, call, client, encode=encode, send=send)

    def give_up(self) -> None:
        """Tell all who are on the way that there is no time left."""
        self._quicks.give_up()

    def _encode(self, codec: Codec, call: Call, what: Outcome) -> Reply:
        try:
            return infer_reply(self._desk, codec, call, what) if isinstance(what, Answer) else reply_to(what)
        except Exception as error:  # the root of the call: report, answer, go on serving
            return reply_to(error)

    def _send(self, line: Line, known: Known, to: Quick, reply: Reply) -> None:
        self._desk.replies[reply.status] += 1
        if known.accepts is None or len(reply.body) < SMALL:
            line.reply(to, reply)
            return
        packing = asyncio.get_running_loop().create_task(_packed(line, to, reply, known.accepts))
        self._packing.add(packing)
        packing.add_done_callback(self._packing.discard)


def _new(codec: Codec, text: bytes, following: int) -> tuple[Call, bytes] | None:
    """Return a call that has not come before, if there is nothing wrong with it and all of it is there."""
    try:
        call = codec.decode(text, following)
    except UserError:
        return None
    return None if call.elsewhere else (call, b"")


async def _packed(line: Line, to: Quick, reply: Reply, accepts: bytes) -> None:
    line.reply(to, await as_accepted(accepts, reply))


def size_beside(request: Request) -> int | None:
    """Return how many bytes come behind a call's head, where the same head will always mean the same; else None."""
    exchange = request.exchange
    head, names = exchange.head, [name for name, _ in exchange.headers]
    size = request.header(b"content-length")
    if not 0 < len(head) <= LONGEST_HEAD or not exchange.keep_alive or exchange.expects or size is None:
        return None
    if not OTHERWISE.isdisjoint(names):
        return None
    lines_end_alike = head.count(b"\n") == len(names) + 2  # else it is not sure where the head does
    return int(size) if lines_end_alike else None
