"""The replicas as one ingress sees them, and sending calls: to one replica, to another if that is lost, or to all.

Ray reports which replicas there are (`deployments.py`); failures of connections are noticed here first.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

import orjson

from latebind.cluster.merging import merged_statistics
from latebind.cluster.routing import Router
from latebind.cluster.upstream import Lost, Parts, Peer, ReplicaInfo, failed
from latebind.domain.errors import Refused, Unavailable
from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace
from latebind.preprocessing.preprocessor import Preprocessor
from latebind.server.calls import WAITED_HEADER
from latebind.server.gateway import NO_DIMS, Claim, Snapshot
from latebind.server.limits import Limits
from latebind.server.rest.messages import Reply, json_reply
from latebind.server.rest.protocol import Request

SUSPECT_SECONDS = 1.0  # after a loss, during which a replica is asked only if there is no other
TRIES = 3
SOON_SECONDS = 0.9  # that replicas have to send their figures
# Headers that are not sent on: they belong to one connection, or the ingress has handled them.
STAYS = frozenset(
    (
        *b"authorization connection content-length expect host keep-alive origin te transfer-encoding upgrade".split(),
        WAITED_HEADER,
    )
)

logger = logging.getLogger(__name__)


class Fleet:
    """All replicas, each of which takes `most` calls at once. They answer only callers that show `secret`.

    It takes the place of a frontend's gateway, but calls go to replicas' frontends instead of slots. `moved` counts
    calls that were sent to another replica after one was lost.
    """

    def __init__(self, *, most: int, limits: Limits, secret: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.models: Mapping[str, ModelSpec] = {}
        self.router = Router(most=most)
        self.moved = 0
        self._most = most
        self._clock = clock
        self._limits = limits
        # A replica accepts a call for a loopback name, wherever it listens.
        self._usual = b"host: localhost\r\nauthorization: Bearer %s\r\n" % secret.encode()
        self._known: dict[str, Peer] = {}
        # The last load or unload of each model, as the request that replicas get, in the order in which clients asked
        # for them: for replicas that start later. They are kept as long as the ingress lives.
        self._changes: dict[str, Parts] = {}

    # Which replicas there are

    @property
    def peers(self) -> list[Peer]:
        """The replicas that get calls."""
        return [peer for peer in self._known.values() if peer.serves]

    def see(self, replicas: Iterable[ReplicaInfo]) -> None:
        """Update which replicas there are. Calls that were sent to others are still answered by them."""
        before, self._known = self._known, {}
        for info in replicas:
            peer = before.pop(info.name, None) or Peer(info, serves=not self._changes)
            peer.report = info.report
            self._known[info.name] = peer
            if not peer.serves and (peer.catching_up is None or peer.catching_up.done()):
                peer.catching_up = asyncio.create_task(self._catch_up(peer))
        for gone in before.values():
            gone.close()
        self.router.see(self.peers, self._clock())

    async def _catch_up(self, peer: Peer) -> None:
        """Send a new replica all loads and unloads, also those made meanwhile; it gets calls from then on.

        One that it cannot do is logged. If the replica is lost, they are sent again as long as Ray reports it.
        """
        sent: dict[str, Parts] = {}
        try:
            while unsent := {model: parts for model, parts in self._changes.items() if sent.get(model) is not parts}:
                for model, parts in unsent.items():
                    reply = await peer.ask(parts)
                    sent[model] = parts
                    if failed(reply):
                        logger.error("replica %s could not load or unload %s: %r", peer.name, model, reply.body[:200])
        except Lost as lost:
            logger.warning("loads and unloads could not be sent to replica %s: %s", peer.name, lost)
        else:
            peer.serves = True
            self.router.replicas[peer.name] = peer

    def close(self) -> None:
        """Close the connections to all replicas."""
        for peer in self._known.values():
            peer.close()

    # Calls

    def request(self, method: str, path: bytes, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Parts:
        """Return a request in the form that replicas take."""
        lines = [method.encode(), b" ", path, b" HTTP/1.1\r\n", self._usual]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        return b"".join(lines), body

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncIterator[Parts]:
        """Yield a client's request for a replica, once its body has arrived. Raises what reading it raises.

        The body is counted in `Held` as it arrives, until the end of the block: it must be kept until there is an
        answer, because another replica may have to be asked.
        """
        headers = [header for header in request.head.headers if header[0] not in STAYS]
        request.as_sent = True  # the replica decompresses it
        try:
            yield self.request(request.head.method, request.head.target, headers, await request.read())
        finally:
            request.release()

    def require_room(self) -> None:
        """Raise `Unavailable` if there is no replica or none answers, `Refused` if none takes more calls."""
        peers = self.peers
        if not peers:
            raise Unavailable("no replica is there yet: try again later")
        if all(peer.silent for peer in peers):
            raise Unavailable("no replica answers at the moment: try again later")
        if not any(self.router.takes(peer) for peer in peers):
            raise Refused(f"every replica has {self._most} calls under way: try again later")

    def choose(self, model: str, tried: Collection[str] = ()) -> Peer:
        """Return the replica for a call. Raises what `require_room` raises."""
        self.require_room()
        chosen = self.router.choose(model, self._clock(), tried)
        assert chosen is not None, "there is room"
        return self._known[chosen.name]

    async def one(self, model: str, parts: Parts) -> Reply:
        """Return the reply of one replica or, if that is lost, of another: repeating such a call is harmless.

        Later replicas get only the remaining time. Raises `Unavailable`, and `Refused` if too much is in flight.
        """
        tried: list[str] = []
        begun = time.monotonic()
        while True:
            peer = self.choose(model, tried)
            try:
                return await peer.ask(_later(parts, begun) if tried else parts)
            except Lost as lost:
                peer.suspect(self._clock() + SUSPECT_SECONDS)
                tried.append(peer.name)
                if len(tried) == TRIES:
                    raise Unavailable(f"the replica that had this call was lost ({lost}): try again later") from None
                self.moved += 1

    async def all(self, parts: Parts) -> Reply:
        """Send a request to all replicas; the reply is the first failure, if there is one.

        Raises `Unavailable` if a replica is lost or there is none.
        """
        peers = self.peers
        if not peers:
            raise Unavailable("no replica is there yet: try again later")
        replies = await asyncio.gather(*[self._ask(peer, parts) for peer in peers])
        return next(filter(failed, replies), replies[0])

    async def change(self, model: str, parts: Parts) -> Reply:
        """Do what `all` does with a request to load or unload a model, and keep it for replicas that start later.

        What replicas could not do is forgotten, unless there has been a newer change of the model.
        """
        before = self._changes.pop(model, None)
        self._changes[model] = parts  # first, so that a replica that starts meanwhile gets it too
        done = False
        try:
            reply = await self.all(parts)
            done = not failed(reply)
        finally:
            if not done and self._changes.get(model) is parts:
                del self._changes[model]
                if before is not None:
                    self._changes[model] = before
        return reply

    async def each(self, parts: Parts) -> dict[str, Reply]:
        """Return the replies of all replicas that are not lost meanwhile and answer soon, by name."""
        peers = self.peers
        asked = [asyncio.wait_for(self._ask(peer, parts), SOON_SECONDS) for peer in peers]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        return {peer.name: reply for peer, reply in zip(peers, replies, strict=True) if isinstance(reply, Reply)}

    async def statistics(self, parts: Parts) -> Reply:
        """Return the protocol's statistics, added up over the replicas. Raises `Unavailable` if none answers."""
        replies = (await self.each(parts)).values()
        if not replies:
            raise Unavailable("no replica answers at the moment: try again later")
        found = next(filter(failed, replies), None)
        return found or json_reply(merged_statistics([orjson.loads(reply.body) for reply in replies]))

    async def _ask(self, peer: Peer, parts: Parts) -> Reply:
        try:
            return await peer.ask(parts)
        except Lost as lost:
            peer.suspect(self._clock() + SUSPECT_SECONDS)
            raise Unavailable(f"a replica was lost before it had answered ({lost}): try again later") from None

    # The interface of a frontend's gateway

    def live(self) -> bool:
        """Return True: the ingress lives."""
        return True

    def ready(self, model: str | None = None) -> bool:
        """Return whether there is a replica that answers; replicas are ready before Ray reports them."""
        del model
        return any(not peer.silent for peer in self.peers)

    async def claim(
        self, model: str, rows: int, *, deadline: float, priority: int = 0, dims: Mapping[str, int] = NO_DIMS
    ) -> Claim:
        """Raise `Unavailable`: there are no slots here."""
        del rows, deadline, priority, dims
        raise Unavailable(f"{model} is served by replicas, not by the ingress")

    def preprocessor(self, model: str) -> Preprocessor | None:
        """Return None: the replicas have them."""
        del model
        return None

    def places(self, model: str) -> int:
        """Return 0: the replicas have the slots."""
        del model
        return 0

    async def metrics(self) -> Snapshot:
        """Return no figures: the replicas have them."""
        return {"models": {}}

    async def picture(self) -> Picture:
        """Return an empty picture: the replicas have the workers."""
        return Picture()

    async def traces(self) -> Sequence[Trace]:
        """Return no traces: the replicas trace calls."""
        return ()


def _later(parts: Parts, begun: float) -> Parts:
    """Return the request with a header for how long it has waited."""
    line, _, rest = parts[0].partition(b"\r\n")
    return b"%b\r\n%b: %.6f\r\n%b" % (line, WAITED_HEADER, time.monotonic() - begun, rest), *parts[1:]
