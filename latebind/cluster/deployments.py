"""The actors that Ray Serve runs: replica and ingress. Ray awaits `__init__` and, at the end, `__del__`."""

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
    """A replica. What it reports to Ray reaches the ingress through `router.py`."""

    async def __init__(self, application: Application) -> None:  # type: ignore[misc]
        write_logs("replica", application.settings.observability.log_format)
        self._replica = await Replica.start(application, ray.util.get_node_ip_address())
        settle()

    def record_replica_metadata(self) -> dict[str, Any]:
        """Report once where the ingress finds this replica."""
        return {ADDRESS: (self._replica.host, self._replica.port), LOCAL: self._replica.local}

    async def record_routing_stats(self) -> dict[str, Any]:
        """Report, every second, the figures by which the ingress places models."""
        return {FIGURES: await self._replica.figures()}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report, every second, the load."""
        return asdict(await self._replica.load())

    async def check_health(self) -> None:
        """Raise if this replica is unhealthy."""
        self._replica.check()

    async def __del__(self) -> None:
        await self._replica.close()


class IngressActor:
    """The ingress in front of a deployment of replicas, whose handle it gets."""

    async def __init__(self, application: Application, replicas: Any) -> None:  # type: ignore[misc]
        write_logs("ingress", application.settings.observability.log_format)
        self._ingress = await Ingress.start(application, partial(look, replicas))
        settle()

    async def ports(self) -> tuple[int, int | None]:
        """Return the ports for HTTP and gRPC."""
        return self._ingress.ports

    async def check_health(self) -> None:
        """Raise if the ingress is unhealthy."""
        self._ingress.check()

    async def __del__(self) -> None:
        await self._ingress.close()
