"""The ingress: the door that clients call. It has no engine and sends calls on to replicas."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from msgspec.structs import replace

from latebind.cluster.fleet import Fleet, Peer, ReplicaInfo
from latebind.cluster.homes import Homes
from latebind.cluster.relay import Relay
from latebind.cluster.replica import Application
from latebind.cluster.routes import relayed as relayed_routes
from latebind.cluster.rpc import relayed as relayed_methods
from latebind.cluster.upstream import Lost
from latebind.server.door import Door, Verbs
from latebind.server.limits import Limits

PERIOD = 0.2  # seconds between two updates of the list of replicas

Look = Callable[[Callable[[Sequence[ReplicaInfo]], None]], Awaitable[None]]

logger = logging.getLogger(__name__)


class Ingress:
    """A door in front of all replicas that `look` reports. Create one with `start`, end it with `close`."""

    def __init__(self, fleet: Fleet, door: Door, look: Look) -> None:
        self.fleet = fleet
        self.door = door
        self._look = look
        self._telling: dict[str, asyncio.Task[None]] = {}
        self._following = asyncio.create_task(self._follow())

    @classmethod
    async def start(cls, application: Application, look: Look, *, limits: Limits | None = None) -> Self:
        """Open the door once there is a replica. Raises what `Door.open` raises."""
        settings, limits = application.settings, limits or Limits()
        server, workers = settings.server, settings.engine.crew
        fleet = Fleet(most=settings.cluster.calls, homes=Homes(allowed=server.deadline, workers=workers))
        await look(fleet.see)
        relay = Relay(fleet, limits, application.secret)
        door = Door(
            fleet,
            replace(server, dashboard=False),
            limits=limits,
            verbs=Verbs(
                routes=relayed_routes(relay),
                methods=None if server.grpc_port is None else relayed_methods(relay),
            ),
        )
        await door.open()
        return cls(fleet, door, look)

    @property
    def ports(self) -> tuple[int, int | None]:
        """The ports for HTTP and gRPC."""
        return self.door.port, self.door.grpc_port

    def check(self) -> None:
        """Raise if the ingress no longer updates its list of replicas."""
        if self._following.done():
            self._following.result()

    async def close(self) -> None:
        """Answer the calls under way, then close."""
        self.door.close()
        await self.door.closed()
        for task in (self._following, *self._telling.values()):
            task.cancel()

    async def _follow(self) -> None:
        """Update the list of replicas at intervals."""
        while True:
            await asyncio.sleep(PERIOD)
            try:
                await self._look(self.fleet.see)
            except Exception:  # the root of this task: the next update may succeed
                logger.exception("nobody told which replicas there are")
            for peer in self.fleet.peers:
                peer.check()
            for peer in self.fleet.coming:
                if peer.info.name not in self._telling:
                    self._telling[peer.info.name] = asyncio.create_task(self._tell(peer))

    async def _tell(self, peer: Peer) -> None:
        """The root of a task: send a new replica the model changes. If it is lost but still runs, this is repeated."""
        try:
            await self.fleet.tell(peer)
        except Lost as lost:
            logger.warning("replica %s could not be told of changes: %s", peer.info.name, lost)
        finally:
            del self._telling[peer.info.name]
