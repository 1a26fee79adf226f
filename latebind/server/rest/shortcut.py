"""The shortcut of an infer call: no parser, no task. Most calls of a busy server take it.

It is open to a call whose head has come before, byte for byte, and was answered, whose body arrives together with the
head, and for which slots are free at once. All other calls take the normal way, which also reports what is wrong with
them.
"""

import asyncio
from typing import Final, Protocol

from latebind.domain.errors import UserError
from latebind.server.calls import WAITED_HEADER, Call
from latebind.server.direct import DirectCall, DirectCalls, Outcome
from latebind.server.gateway import Answer, Claim
from latebind.server.rest.codec import Codec
from latebind.server.rest.compression import SMALL, accepted
from latebind.server.rest.context import Context
from latebind.server.rest.filling import fill_now
from latebind.server.rest.infer import compressed_for, infer_reply, json_bytes
from latebind.server.rest.protocol import DirectRequest, HttpProtocol
from latebind.server.rest.request import Reply, Request, reply_to

END: Final = b"\r\n\r\n"
MOST_HEADS: Final = 1024
LONGEST_HEAD: Final = 4096
# Headers of calls that must take the normal way.
NEEDS_NORMAL_WAY = frozenset({b"transfer-encoding", b"content-encoding", b"traceparent", WAITED_HEADER})


class InferShortcut(Protocol):
    """Something that can answer infer calls without parser and task."""

    def learn(self, request: Request) -> None:
        """Remember the head of a call that was answered."""

    def take(self, connection: HttpProtocol, data: bytes, client: str) -> DirectRequest | None:
        """Start to answer data on an idle connection; None, with nothing changed, if they take the normal way."""

    def give_up(self) -> None:
        """Answer all calls that are under way that there is no time left for them."""


class KnownHead:
    """What the head of a call says.

    The body has `size` bytes, of which the first `json_bytes` are JSON (None: all). `client` is the address of the
    caller if the head contains it. `last` is the last call that came with this head.
    """

    __slots__ = ("accepts", "client", "json_bytes", "last", "model", "size", "version")

    def __init__(self, request: Request, size: int, *, behind_ingress: bool) -> None:
        accepts = request.header(b"accept-encoding")
        self.model = request.model
        self.version = request.version
        self.size = size
        self.json_bytes = json_bytes(request)
        self.accepts = accepts if accepted(accepts) else None
        self.client = request.client if behind_ingress else None
        self.last: LastCall | None = None


class LastCall:
    """A call that may come again with other values.

    `before` are the head and the JSON up to the values, `behind` is the rest of the JSON; together with the values
    these are `size` bytes. Binary values follow the JSON, and then `behind` is empty.
    """

    __slots__ = ("before", "behind", "call", "codec", "known", "size")

    def __init__(self, known: KnownHead, codec: Codec, call: Call, *, before: bytes, behind: bytes, size: int) -> None:
        self.known = known
        self.codec = codec
        self.call = call
        self.before = before
        self.behind = behind
        self.size = size

    def fits(self, data: bytes) -> bool:
        """Tell whether `data` is the same call except for its values."""
        return len(data) == self.size and data.startswith(self.before) and data.endswith(self.behind)


# With the bytes that hold its binary data, and where these begin.
FoundCall = tuple[KnownHead, Codec, Call, bytes, int]


class Shortcut:
    """Remembers the heads of calls and has the direct calls that are under way. One for each door.

    `behind_ingress`: the head of a call contains its client's address.
    """

    def __init__(self, context: Context, *, behind_ingress: bool = False) -> None:
        self.context = context
        self.direct_calls = DirectCalls(context.service)
        self._behind_ingress = behind_ingress
        self._heads: dict[bytes, KnownHead] = {}
        self._compressing: set[asyncio.Task[None]] = set()

    def learn(self, request: Request) -> None:
        """Remember the head of a call that was answered, if the same head will always mean the same."""
        head, size = request.exchange.head, fixed_body_size(request)
        if size is None or head in self._heads:
            return
        if len(self._heads) == MOST_HEADS:
            self._heads.clear()
        self._heads[head] = KnownHead(request, size, behind_ingress=self._behind_ingress)

    def take(self, connection: HttpProtocol, data: bytes, client: str) -> DirectRequest | None:
        """Start to answer data on an idle connection; None, with nothing changed, if they take the normal way."""
        last: LastCall | None = connection.last_call
        asked = (
            self._again(connection, last, data)
            if last is not None and last.fits(data)
            else self._asked(connection, data)
        )
        if asked is None:
            return None
        known, codec, call, data, begin = asked
        claim = self.context.service.claim_now(codec.spec, call)
        if claim is None:
            return None
        try:
            fill_now(call, data, begin, claim)
        except UserError:
            claim.release()
            return None
        return RestCall(self, connection, known, codec, call, claim, client if known.client is None else known.client)

    def give_up(self) -> None:
        """Answer all calls that are under way that there is no time left for them."""
        self.direct_calls.give_up()

    def compress_and_send(self, connection: HttpProtocol, to: DirectCall, reply: Reply, accepts: bytes) -> None:
        """Send a reply in a content encoding that its client accepts."""
        compressing = asyncio.get_running_loop().create_task(_send_compressed(connection, to, reply, accepts))
        self._compressing.add(compressing)
        compressing.add_done_callback(self._compressing.discard)

    def _asked(self, connection: HttpProtocol, data: bytes) -> FoundCall | None:
        """Find the call in data that begin with a known head, and remember it for the connection."""
        body = data.find(END) + len(END)
        known = self._heads.get(data[:body])
        if known is None or len(data) - body != known.size:
            return None
        connection.last_call = last = known.last
        if last is not None and last.fits(data):
            return self._again(connection, last, data)
        spec = self.context.service.spec_for_direct_call(known.model, known.version)
        if spec is None:
            return None
        codec = self.context.codec(spec)
        split = body + (known.size if known.json_bytes is None else known.json_bytes)
        text, following = data[body:split], len(data) - split
        recalled = codec.recall(text, following)
        if recalled is None:
            return _new(known, codec, text, data, split)
        call, begin, end = recalled
        before, behind = data[: body + begin], text[end:]
        known.last = connection.last_call = last = LastCall(
            known, codec, call, before=before, behind=behind, size=len(data)
        )
        return self._again(connection, last, data)

    def _again(self, connection: HttpProtocol, last: LastCall, data: bytes) -> FoundCall | None:
        """Find the call in data that equal a remembered call except for the values; the model must still be served."""
        known, codec, call = last.known, last.codec, last.call
        if self.context.service.spec_for_direct_call(known.model, known.version) is not codec.spec:
            known.last = connection.last_call = None
            return self._asked(connection, data)
        begin = len(last.before)
        if not last.behind:
            return known, codec, call, data, begin
        text = data[begin : len(data) - len(last.behind)]
        values = codec.values(call, text)
        return None if values is None else (known, codec, call, values, 0)


class RestCall(DirectCall):
    """A direct call that came over HTTP."""

    __slots__ = ("_codec", "_connection", "_known", "_shortcut")

    def __init__(
        self,
        shortcut: Shortcut,
        connection: HttpProtocol,
        known: KnownHead,
        codec: Codec,
        call: Call,
        claim: Claim,
        client: str,
    ) -> None:
        super().__init__(shortcut.direct_calls, claim, call, client)
        self._shortcut = shortcut
        self._connection = connection
        self._known = known
        self._codec = codec

    def encode(self, what: Outcome) -> Reply:
        """Return the reply for an answer or an error."""
        try:
            if isinstance(what, Answer):
                return infer_reply(self._shortcut.context, self._codec, self._call, what)
            return reply_to(what, self._call.id)
        except Exception as error:  # the root of the call: report, answer, go on serving
            return reply_to(error, self._call.id)

    def send(self, reply: Reply) -> None:
        """Send the reply, compressed if that pays and the client accepts it."""
        accepts = self._known.accepts
        self._shortcut.context.replies[reply.status] += 1
        if accepts is None or len(reply.body) < SMALL:
            self._connection.reply(self, reply)
        else:
            self._shortcut.compress_and_send(self._connection, self, reply, accepts)


def _new(known: KnownHead, codec: Codec, text: bytes, data: bytes, split: int) -> FoundCall | None:
    """Return a call that has not come before, if nothing is wrong with it and all of it is there."""
    try:
        call = codec.decode(text, len(data) - split)
    except UserError:
        return None
    return None if call.uses_shared_memory else (known, codec, call, data, split)


async def _send_compressed(connection: HttpProtocol, to: DirectCall, reply: Reply, accepts: bytes) -> None:
    connection.reply(to, await compressed_for(accepts, reply))


def fixed_body_size(request: Request) -> int | None:
    """Return the size of the body behind a head; None if the same head may mean something else next time."""
    exchange = request.exchange
    head, names = exchange.head, [name for name, _ in exchange.headers]
    size = request.header(b"content-length")
    if not 0 < len(head) <= LONGEST_HEAD or not exchange.keep_alive or exchange.expects or size is None:
        return None
    if not NEEDS_NORMAL_WAY.isdisjoint(names):
        return None
    lines_end_alike = head.count(b"\n") == len(names) + 2  # else it is not certain where the head ends
    return int(size) if lines_end_alike else None
