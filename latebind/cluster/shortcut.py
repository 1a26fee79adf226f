"""The shortcut of an infer call through the ingress, with no parser and no task; compare `server/rest/shortcut.py`.

A call whose head has come before goes to a replica over an idle connection, and the reply goes back as it comes. If
that replica is lost meanwhile, another one is asked in the normal way.
"""

import asyncio
import time
from collections import Counter
from functools import partial

import msgspec

from latebind.cluster.fleet import Peer
from latebind.cluster.relay import Relay
from latebind.cluster.upstream import Lost, Parts, Upstream
from latebind.domain.errors import Unavailable
from latebind.server.calls import CLIENT_HEADER
from latebind.server.rest.protocol import HttpProtocol
from latebind.server.rest.request import Reply, Request, error_reply, reply_to
from latebind.server.rest.shortcut import END, MOST_HEADS, fixed_body_size


class KnownHead(msgspec.Struct, frozen=True, gc=False):
    """What a head says: the model, how many bytes follow it, and the head in the form that replicas take.

    That form has two parts; the address of the client goes between them.
    """

    model: str
    size: int
    head: tuple[bytes, bytes]


class IngressShortcut:
    """Remembers the heads of calls and has the calls that are under way. One for each ingress.

    `taken` counts calls, `replies` counts replies by status.
    """

    def __init__(self, relay: Relay) -> None:
        self.replies: Counter[int] = Counter()
        self.taken = 0
        self._relay = relay
        self._heads: dict[bytes, KnownHead] = {}
        self._under_way: set[ForwardedCall] = set()

    def learn(self, request: Request) -> None:
        """Do nothing: this process answered the call itself."""

    def learn_passed(self, request: Request, parts: Parts) -> None:
        """Remember the head of a call that a replica answered, and the head that was sent to it."""
        head, size = request.exchange.head, fixed_body_size(request)
        if size is None or head in self._heads or size != len(parts[1]):
            return
        if len(self._heads) == MOST_HEADS:
            self._heads.clear()
        before, mark, after = parts[0].partition(CLIENT_HEADER + b": ")
        self._heads[head] = KnownHead(request.model, size, (before + mark, after[after.find(b"\r\n") :]))

    def take(self, connection: HttpProtocol, data: bytes, client: str) -> "ForwardedCall | None":
        """Start to send on data of an idle connection; None, with nothing changed, for the normal way."""
        body = data.find(END) + len(END)
        known = self._heads.get(data[:body])
        if known is None or len(data) - body != known.size or not self._relay.fleet.has_room:
            return None
        peer = self._relay.fleet.choose(known.model)
        upstream = peer.take()
        if upstream is None:
            return None
        before, after = known.head
        return ForwardedCall(
            self, connection, known.model, (before + client.encode() + after, data[body:]), peer, upstream
        )

    def give_up(self) -> None:
        """Answer all calls that are under way that there is no time left for them."""
        for call in tuple(self._under_way):
            call.give_up()

    def begin(self, call: "ForwardedCall", peer: Peer, upstream: Upstream, parts: Parts) -> None:
        """Send a call to a replica."""
        self.taken += 1
        peer.under_way += 1
        self._under_way.add(call)
        upstream.send_on(parts, partial(self._heard, call, peer, upstream))

    def end(self, call: "ForwardedCall", reply: Reply) -> None:
        """Reply to a call."""
        self._under_way.discard(call)
        self.replies[reply.status] += 1
        call.connection.reply(call, reply)

    def _pass_on(self, call: "ForwardedCall", written: bytes) -> None:
        self._under_way.discard(call)
        self.replies[200] += 1
        call.connection.pass_on(call, written)

    def forget(self, call: "ForwardedCall") -> None:
        """Forget a call whose client has gone."""
        self._under_way.discard(call)

    def _heard(self, call: "ForwardedCall", peer: Peer, upstream: Upstream, what: Reply | Lost | bytes) -> None:
        peer.under_way -= 1
        call.upstream = None
        if isinstance(what, bytes):
            self._pass_on(call, what)
            peer.give_back(upstream)
        elif isinstance(what, Reply):
            peer.give_back(upstream)
            self.end(call, what)
        else:
            peer.give_back(upstream)
            self._relay.fleet.suspect(peer)
            self._relay.moved += 1
            call.task = asyncio.get_running_loop().create_task(self._again(call))

    async def _again(self, call: "ForwardedCall") -> None:
        """The root of a task: ask another replica in the normal way, and reply with the result."""
        try:
            reply = await self._relay.one(call.model, call.parts, begun=call.begun)
        except Exception as error:  # the client is told, as any other
            reply = reply_to(error)
        self.end(call, reply)


class ForwardedCall:
    """A call that was sent on. Its connection starts no other call meanwhile."""

    __slots__ = ("_peer", "_shortcut", "begun", "connection", "model", "parts", "task", "upstream")

    expects = False

    def __init__(
        self,
        shortcut: IngressShortcut,
        connection: HttpProtocol,
        model: str,
        parts: Parts,
        peer: Peer,
        upstream: Upstream,
    ) -> None:
        self.connection = connection
        self.model = model
        self.parts = parts
        self.begun = time.monotonic()
        self.upstream: Upstream | None = upstream
        self.task: asyncio.Task[None] | None = None
        self._shortcut = shortcut
        self._peer = peer

    def begin(self) -> None:
        """Send it."""
        assert self.upstream is not None, "the call was sent already"
        self._shortcut.begin(self, self._peer, self.upstream, self.parts)

    def disconnect(self) -> None:
        """Close the connection to the replica, which cancels the call there: the client has gone."""
        self._shortcut.forget(self)
        if self.upstream is not None:
            self.upstream.abort()
            self._peer.give_back(self.upstream)
            self._peer.under_way -= 1
            self.upstream = None
        if self.task is not None:
            self.task.cancel()

    def give_up(self) -> None:
        """Answer that there is no time left."""
        self.disconnect()
        self.connection.reply(self, error_reply(Unavailable("the server shut down before it had the answer")))
