"""The replicas as one ingress sees them: their addresses, what they have in memory, how many calls they have.

Ray reports which replicas there are (`router.py`); failures of connections are noticed here first.
"""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from latebind.cluster.homes import Homes
from latebind.cluster.model_changes import ModelChanges
from latebind.cluster.upstream import Parts, Upstream
from latebind.domain.errors import Refused, Unavailable
from latebind.domain.model import ModelSpec
from latebind.domain.picture import Picture
from latebind.domain.tracing import Trace
from latebind.server.gateway import Claim
from latebind.server.rest.request import Reply

SUSPECT_SECONDS = 1.0  # for so long after a loss, a replica is asked only if there is no other


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

    `under_way` counts the calls that it has from this ingress. It is suspected to be lost until `suspect_until`.
    """

    def __init__(self, info: ReplicaInfo) -> None:
        self.info = info
        self.under_way = 0
        self.suspect_until = 0.0
        self._idle: list[Upstream] = []

    async def ask(self, parts: Parts) -> Reply:
        """Return its reply to a request. Raises `Lost`."""
        self.under_way += 1
        try:
            upstream = self.take() or await Upstream.open(self.info.host, self.info.port, self.info.local)
            reply = await upstream.ask(parts)
        finally:
            self.under_way -= 1
        self.give_back(upstream)
        return reply

    def give_back(self, upstream: Upstream) -> None:
        """Keep a connection for the next call."""
        if upstream.usable:
            self._idle.append(upstream)

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().abort()

    def take(self) -> Upstream | None:
        """Return an idle connection, or None; give it back after use."""
        while self._idle:
            upstream = self._idle.pop()
            if upstream.usable:
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

        Replicas in `tried`, and suspected ones, come last. Raises `Unavailable` if there is no replica, and `Refused`
        if all have as many calls as they take.
        """
        self.require_room()
        now = time.monotonic()
        self.homes.note(model)
        homes = self.homes.of.get(model, ())

        def rank(peer: Peer) -> tuple[bool, bool, bool, int, float]:
            name = peer.info.name
            away = bool(homes) and name not in homes
            return name in tried, peer.suspect_until > now, away, peer.under_way, self._random.random()

        return min((peer for peer in self._peers.values() if peer.under_way < self._most), key=rank)

    def require_room(self) -> None:
        """Raise `Unavailable` if there is no replica, and `Refused` if all have as many calls as they take."""
        if not self._peers:
            raise Unavailable("no replica is there yet: try again later")
        if not self.has_room:
            raise Refused(f"every replica has {self._most} calls under way: try again later")

    @property
    def has_room(self) -> bool:
        """Whether any replica takes another call."""
        return any(peer.under_way < self._most for peer in self._peers.values())

    def suspect(self, peer: Peer) -> None:
        """Suspect a replica after a loss; Ray will report whether it is gone."""
        peer.suspect_until = time.monotonic() + SUSPECT_SECONDS
        peer.close()

    # What the service of a door asks of its gateway

    def live(self) -> bool:
        """Return True: the ingress lives."""
        return True

    def ready(self, model: str | None = None) -> bool:
        """Tell whether there is a replica; replicas are ready before Ray reports them."""
        del model
        return bool(self._peers)

    def claim_now(self, model: str, rows: int) -> Claim | None:
        """Return None: there are no slots here."""
        del model, rows
        return None

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
