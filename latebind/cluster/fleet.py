"""The replicas as one ingress sees them: their addresses, what they have in memory, how many calls they have.

Ray reports which replicas there are (`router.py`); failures of connections are noticed here first.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from latebind.cluster.homes import Homes
from latebind.cluster.model_changes import ModelChanges
from latebind.cluster.upstream import Lost, Parts, Upstream
from latebind.domain.errors import Refused, Unavailable
from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace
from latebind.server.gateway import Claim
from latebind.server.rest.request import Reply

SILENT_SECONDS = 0.5  # without a word from a replica that has calls; then it is asked whether it lives
ALIVE_SECONDS = 1.0  # that it has for the answer
SUSPECT_SECONDS = 1.0  # for so long after a loss, a replica is asked only if there is no other
LIVE: Parts = (b"GET /v2/health/live HTTP/1.1\r\nhost: replica\r\ncontent-length: 0\r\n\r\n",)


@dataclass(frozen=True, slots=True)
class ReplicaInfo:
    """What Ray reports about a running replica: its name, the address of its door, and its latest figures.

    `local` is a Unix socket of its door, for callers on the same machine.
    """

    name: str
    host: str
    port: int
    figures: Mapping[str, Any] = field(default_factory=dict)
    local: str = ""


class Peer:
    """One replica, with the idle connections to it.

    `under_way` counts the calls that it has from this ingress. It is suspected to be lost until `suspect_until`. One
    that is `silent` stands still, and gets no calls until it answers again.
    """

    def __init__(self, info: ReplicaInfo) -> None:
        self.info = info
        self.under_way = 0
        self.suspect_until = 0.0
        self.silent = False
        self._idle: list[Upstream] = []
        self._busy: set[Upstream] = set()
        self._checking: asyncio.Task[None] | None = None

    async def ask(self, parts: Parts) -> Reply:
        """Return its reply to a request. Raises `Lost`."""
        self.under_way += 1
        try:
            upstream = self.take() or await self._connected()
            try:
                reply = await upstream.ask(parts)
            finally:
                self.give_back(upstream)
        finally:
            self.under_way -= 1
        return reply

    def give_back(self, upstream: Upstream) -> None:
        """Keep a connection for the next call, unless it is lost."""
        self._busy.discard(upstream)
        if upstream.usable:
            self._idle.append(upstream)

    def check(self) -> None:
        """Find out whether it lives, if it has calls and says nothing; call this often.

        A process may stand still while its machine keeps its connections open.
        """
        now = time.monotonic()
        waits = self._busy and max([upstream.moved for upstream in self._busy]) + SILENT_SECONDS < now
        if (waits or self.silent) and (self._checking is None or self._checking.done()):
            self._checking = asyncio.create_task(self._check())

    async def _check(self) -> None:
        """Ask whether it lives. If there is no answer, the calls that it has are lost."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                upstream = await Upstream.open(self.info.host, self.info.port, self.info.local)
                try:
                    await upstream.ask(LIVE)
                finally:
                    upstream.abort()
            self.silent = False
        except (Lost, TimeoutError):
            self.silent = True
            for busy in tuple(self._busy):
                busy.lose(f"it has said nothing for {SILENT_SECONDS + ALIVE_SECONDS:g} s")

    async def _connected(self) -> Upstream:
        upstream = await Upstream.open(self.info.host, self.info.port, self.info.local)
        self._busy.add(upstream)
        return upstream

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().abort()
        if self._checking is not None:
            self._checking.cancel()

    def take(self) -> Upstream | None:
        """Return an idle connection, or None; give it back after use."""
        while self._idle:
            upstream = self._idle.pop()
            if upstream.usable:
                self._busy.add(upstream)
                return upstream
        return None


class Fleet:
    """All replicas, each of which takes `most` calls at once.

    It takes the place of a door's gateway, but calls go to the doors of replicas instead of slots.
    """

    def __init__(self, *, most: int, homes: Homes, seed: int = 0) -> None:
        self.models: Mapping[str, ModelSpec] = {}
        self.homes = homes
        self.changes = ModelChanges()
        self._peers: dict[str, Peer] = {}
        self._coming: dict[str, Peer] = {}
        self._most = most
        self._random = Random(seed)

    @property
    def peers(self) -> list[Peer]:
        """The replicas that get calls."""
        return list(self._peers.values())

    def see(self, replicas: Iterable[ReplicaInfo]) -> None:
        """Update which replicas there are. Calls that were sent to others are still answered by them.

        If there are model changes, a new replica is `coming` until it has received them.
        """
        serving, before = self._peers, {**self._peers, **self._coming}
        self._peers, self._coming = {}, {}
        for seen in replicas:
            peer = before.pop(seen.name, None) or Peer(seen)
            peer.info = seen
            ready = seen.name in serving or not self.changes
            (self._peers if ready else self._coming)[seen.name] = peer
        for gone in before.values():
            gone.close()
        self.homes.settle([(peer.info.name, peer.info.figures) for peer in self._peers.values()], time.monotonic())

    @property
    def coming(self) -> list[Peer]:
        """The replicas that must receive the model changes before they get calls."""
        return list(self._coming.values())

    async def tell(self, peer: Peer) -> None:
        """Send a coming replica the model changes, and calls from then on. Raises `Lost`."""
        await self.changes.tell(peer.info.name, peer.ask)
        if self._coming.get(peer.info.name) is peer:
            self._peers[peer.info.name] = self._coming.pop(peer.info.name)

    def choose(self, model: str, tried: Collection[str] = ()) -> Peer:
        """Return the replica for a call: of the model's homes the one with the fewest calls under way.

        Replicas in `tried`, and suspected ones, come last. Raises `Unavailable` if no replica is there or answers, and
        `Refused` if all have as many calls as they take.
        """
        self.require_room()
        now = time.monotonic()
        self.homes.note(model)
        homes = self.homes.of.get(model, ())

        def rank(peer: Peer) -> tuple[bool, bool, bool, int, float]:
            name = peer.info.name
            away = bool(homes) and name not in homes
            return name in tried, peer.suspect_until > now, away, peer.under_way, self._random.random()

        return min((peer for peer in self._peers.values() if self._takes(peer)), key=rank)

    def require_room(self) -> None:
        """Raise `Unavailable` if no replica is there or answers, `Refused` if all have as many calls as they take."""
        if not self._peers:
            raise Unavailable("no replica is there yet: try again later")
        if all(peer.silent for peer in self._peers.values()):
            raise Unavailable("no replica answers at the moment: try again later")
        if not self.has_room:
            raise Refused(f"every replica has {self._most} calls under way: try again later")

    @property
    def has_room(self) -> bool:
        """Whether any replica takes another call."""
        return any(self._takes(peer) for peer in self._peers.values())

    def _takes(self, peer: Peer) -> bool:
        return peer.under_way < self._most and not peer.silent

    def suspect(self, peer: Peer) -> None:
        """Suspect a replica after a loss; Ray will report whether it is gone."""
        peer.suspect_until = time.monotonic() + SUSPECT_SECONDS
        peer.close()

    # What the service of a door asks of its gateway

    def live(self) -> bool:
        """Return True: the ingress lives."""
        return True

    def ready(self, model: str | None = None) -> bool:
        """Tell whether there is a replica that answers; replicas are ready before Ray reports them."""
        del model
        return any(not peer.silent for peer in self._peers.values())

    async def claim(self, model: str, rows: int, *, deadline: float, priority: int = 0) -> Claim:
        """Raise `Unavailable`: there are no slots here."""
        del rows, deadline, priority
        raise Unavailable(f"{model} is served by replicas, not by the ingress")

    async def metrics(self) -> Mapping[str, Any]:
        """Return no figures: the replicas have them."""
        return {"models": {}}

    async def picture(self) -> Picture:
        """Return an empty picture: the replicas have the workers."""
        return Picture()

    async def traces(self) -> Sequence[Trace]:
        """Return no traces: the replicas trace calls."""
        return ()
