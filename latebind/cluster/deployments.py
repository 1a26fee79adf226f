"""What Ray Serve runs: a replica and an ingress as actors. Ray awaits `__init__` and, at the end, `__del__`."""

from dataclasses import asdict
from functools import partial
from typing import Any

import ray

from latebind.cluster.ingress import Ingress
from latebind.cluster.replica import Application, Replica
from latebind.cluster.router import ADDRESS, FIGURES, LOCAL, look
from latebind.heap import settle
from latebind.logs import write_logs


class ReplicaActor:
    """A replica. What Ray is told of it comes to the ingress by `router.py`."""

    async def __init__(self, application: Application) -> None:  # type: ignore[misc]
        write_logs("replica", application.settings.observability.log_format)
        self._replica = await Replica.start(application, ray.util.get_node_ip_address())
        settle()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Tell, once, where the ingress finds this replica."""
        return {ADDRESS: (self._replica.host, self._replica.port), LOCAL: self._replica.local}

    async def record_routing_stats(self) -> dict[str, Any]:
        """Tell, every second, what the ingress chooses by."""
        return {FIGURES: await self._replica.figures()}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Tell, every second, how it fared."""
        return asdict(await self._replica.load())

    async def check_health(self) -> None:
        """Raise where this replica is of no use any more."""
        self._replica.check()

    async def __del__(self) -> None:
        await self._replica.close()


class IngressActor:
    """The ingress before the replicas of a deployment, whose handle it gets."""

    async def __init__(self, application: Application, replicas: Any) -> None:  # type: ignore[misc]
        write_logs("ingress", application.settings.observability.log_format)
        self._ingress = await Ingress.start(application, partial(look, replicas))
        settle()

    async def ports(self) -> tuple[int, int | None]:
        """Return where it listens for HTTP and gRPC."""
        return self._ingress.ports

    async def check_health(self) -> None:
        """Raise where the ingress is of no use any more."""
        self._ingress.check()

    async def __del__(self) -> None:
        await self._ingress.close()
