"""Sends calls on to replicas: to a home of the model and, if that replica is lost, to another; or to all replicas."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from latebind.cluster.fleet import Fleet, Peer
from latebind.cluster.upstream import Lost, Parts, failed
from latebind.domain.errors import Unavailable
from latebind.server.calls import CLIENT_HEADER, WAITED_HEADER
from latebind.server.limits import Limits
from latebind.server.rest.request import Body, Held, Reply, Request

TRIES = 3
SOON_SECONDS = 0.9  # that replicas have to tell their figures
# Headers that are not sent on: they belong to one connection, or the ingress has handled them.
STAYS = frozenset(
    (
        *b"authorization connection content-length expect host keep-alive origin te transfer-encoding upgrade".split(),
        CLIENT_HEADER,
        WAITED_HEADER,
    )
)

Header = tuple[bytes, bytes]


class Relay:
    """The relay of one ingress. Replicas answer only callers that show `secret`.

    `moved` counts calls that were sent to another replica after one was lost.
    """

    def __init__(self, fleet: Fleet, limits: Limits, secret: str) -> None:
        self.fleet = fleet
        self.moved = 0
        self._limits = limits
        # A replica takes a call for a name of loopback wherever it listens.
        self._usual = b"host: localhost\r\nauthorization: Bearer %s\r\n" % secret.encode()

    def request(self, method: str, path: bytes, headers: Iterable[Header], body: bytes) -> Parts:
        """Return a request in the form that replicas take."""
        lines = [method.encode(), b" ", path, b" HTTP/1.1\r\n", self._usual]
        for name, value in headers:
            lines += (name, b": ", value, b"\r\n")
        lines.append(b"content-length: %d\r\n\r\n" % len(body))
        return b"".join(lines), body

    @asynccontextmanager
    async def read(self, request: Request, held: Held) -> AsyncIterator[Parts]:
        """Give a client's request for a replica, once its body has arrived. Raises what `Body` raises.

        The body is counted in `held` as it arrives, until the end of the block: it must be kept until there is an
        answer, because another replica may have to be asked.
        """
        headers = [(CLIENT_HEADER, request.client.encode())]
        headers += [header for header in request.headers if header[0] not in STAYS]
        body = Body(request, self._limits, held, as_sent=True)  # the replica decompresses it
        try:
            yield self.request(request.method, request.target, headers, await body.read())
        finally:
            body.release()

    async def one(self, model: str, parts: Parts) -> Reply:
        """Return the reply of one replica or, if that is lost, of another: repeating such a call is harmless.

        Later replicas are told how much of its time is gone. Raises `Unavailable`, and `Refused` if too much is under
        way.
        """
        tried: list[str] = []
        begun = time.monotonic()
        while True:
            peer = self.fleet.choose(model, tried)
            try:
                return await peer.ask(_later(parts, begun) if tried else parts)
            except Lost as lost:
                self.fleet.suspect(peer)
                tried.append(peer.info.name)
                if len(tried) == TRIES:
                    raise Unavailable(f"the replica that had this call was lost ({lost}): try again later") from None
                self.moved += 1

    async def all(self, parts: Parts) -> list[Reply]:
        """Return the replies of all replicas. Raises `Unavailable` if one is lost or there is none."""
        peers = self.fleet.peers
        if not peers:
            raise Unavailable("no replica is there yet: try again later")
        return await asyncio.gather(*[self._ask(peer, parts) for peer in peers])

    async def wish(self, model: str, parts: Parts) -> list[Reply]:
        """Do what `all` does with a request to load or unload a model, and keep it for replicas that start later."""
        changes = self.fleet.changes
        before = changes.note(model, parts)  # first, so that a replica that starts meanwhile gets it too
        try:
            replies = await self.all(parts)
        except BaseException:
            changes.undo(model, parts, before)
            raise
        if any(failed(reply) for reply in replies):
            changes.undo(model, parts, before)
        return replies

    async def each(self, parts: Parts) -> dict[str, Reply]:
        """Return the replies of all replicas that are not lost meanwhile and answer soon, by name."""
        peers = self.fleet.peers
        asked = [asyncio.wait_for(self._ask(peer, parts), SOON_SECONDS) for peer in peers]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        return {peer.info.name: reply for peer, reply in zip(peers, replies, strict=True) if isinstance(reply, Reply)}

    async def _ask(self, peer: Peer, parts: Parts) -> Reply:
        try:
            return await peer.ask(parts)
        except Lost as lost:
            self.fleet.suspect(peer)
            raise Unavailable(f"a replica was lost before it had answered ({lost}): try again later") from None


def _later(parts: Parts, begun: float) -> Parts:
    """Return the request with a header that says how long it has waited."""
    line, _, rest = parts[0].partition(b"\r\n")
    return b"%b\r\n%b: %.6f\r\n%b" % (line, WAITED_HEADER, time.monotonic() - begun, rest), *parts[1:]
