"""What Ray Serve runs: the actors, the autoscaling policy, and how the ingress learns of replicas."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import ray
from ray.serve.config import AutoscalingContext
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from latebind.cluster.ingress import Ingress, Look
from latebind.cluster.replica import ADDRESS, REPORT, Application, Replica
from latebind.cluster.scaling import Load, Since, replicas_needed
from latebind.cluster.upstream import ReplicaInfo
from latebind.heap import settle
from latebind.logs import write_logs


class ReplicaActor(Replica):
    """A replica. Ray awaits `__init__` and, at the end, `__del__`."""

    async def __init__(self, application: Application) -> None:  # type: ignore[misc]
        write_logs("replica", application.settings.observability.log_format)
        await self.open(application, ray.util.get_node_ip_address())
        settle()

    async def __del__(self) -> None:
        await self.close()


class IngressActor(Ingress):
    """The ingress in front of a deployment of replicas, whose handle it gets."""

    async def __init__(self, application: Application, replicas: Any) -> None:  # type: ignore[misc]
        write_logs("ingress", application.settings.observability.log_format)

        await self.open(application, looking(replicas))
        settle()

    async def __del__(self) -> None:
        await self.close()


def looking(replicas: Any) -> Look:
    """Return the call with which the ingress asks the handle of a deployment which replicas there are."""

    async def look(on_replicas: Callable[[Sequence[ReplicaInfo]], None]) -> None:
        """Wait until there is a replica. Nothing is reserved: Ray supports that for callers that send calls themselves.

        Ray's router has an event loop and a thread of its own, while calls go through the replicas that are known.
        """
        loop = asyncio.get_running_loop()

        def report(found: Sequence[ReplicaInfo]) -> None:
            loop.call_soon_threadsafe(on_replicas, found)

        async with replicas.choose_replica(report, _reserve=False):
            pass

    return look


class AnnouncingRouter(RequestRouter):  # type: ignore[misc]
    """A request router, which Ray gives the list of replicas; it reports them, and picks any."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Call the callbacks among the request's arguments with all running replicas."""
        found = []
        for replica in candidate_replicas:
            host, port = replica.replica_metadata[ADDRESS]
            found.append(ReplicaInfo(replica.replica_id.unique_id, host, port, replica.routing_stats.get(REPORT)))
        for on_replicas in pending_request.args if pending_request else ():
            if callable(on_replicas):
                on_replicas(found)
        return [list(candidate_replicas[:1])]


class BySlack:
    """Ray's autoscaling policy: more replicas if answers were at risk for `up` seconds.

    One fewer if that would have sufficed for `down` seconds. `scaling.py` decides.
    """

    def __init__(self, up: float, down: float) -> None:
        self._up = up
        self._down = down

    def __call__(self, context: AutoscalingContext) -> tuple[int, dict[str, Any]]:
        """Return how many replicas there should be; Ray keeps the number within its bounds."""
        replicas, now = context.target_num_replicas, context.current_time
        if context.current_num_replicas != replicas:
            return replicas, {}  # the last change is not complete yet
        reported = [(context.aggregated_metrics or {}).get(name, {}) for name in Load._fields]
        complete = set(reported[0]).intersection(*reported[1:])  # replicas that reported all figures
        loads = [Load(*(figures[replica] for figures in reported)) for replica in sorted(complete, key=str)]
        state = context.policy_state  # Ray keeps something of its own in it too
        since = Since(state.get("at_risk"), state.get("spare"))
        found, since = replicas_needed(loads, replicas, since, now, up=self._up, down=self._down)
        return found, since._asdict()
