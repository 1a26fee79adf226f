"""How the ingress hears from Ray which replicas there are: Ray asks a request router of ours, which asks nobody."""

from collections.abc import Callable, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from latebind.cluster.fleet import ReplicaInfo

ADDRESS = "address"  # in what a replica tells of itself once, as it starts: host and port of its door
LOCAL = "local"  # beside it: the Unix socket
FIGURES = "figures"  # in what it tells every second

OnReplicas = Callable[[Sequence[ReplicaInfo]], None]


class AnnouncingRouter(RequestRouter):  # type: ignore[misc]
    """Tells whoever picks a replica of all that run; the pick itself counts for nothing."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Let those on_replicas that are arguments of the request; any replica will do."""
        for on_replicas in pending_request.args if pending_request else ():
            if callable(on_replicas):
                on_replicas(_seen(candidate_replicas))
        return [list(candidate_replicas[:1])]


async def look(handle: Any, on_replicas: OnReplicas) -> None:
    """Have `on_replicas` called with the replicas of a deployment; waits where there are none.

    Nothing is reserved, as Ray has it for those who send requests to replicas by a way of their own.
    """
    async with handle.choose_replica(on_replicas, _reserve=False):
        pass


def _seen(replicas: Sequence[RunningReplica]) -> list[ReplicaInfo]:
    found = []
    for replica in replicas:
        host, port = replica.replica_metadata[ADDRESS]
        figures, local = replica.routing_stats.get(FIGURES, {}), replica.replica_metadata[LOCAL]
        found.append(ReplicaInfo(replica.replica_id.unique_id, host, port, figures, local))
    return found
