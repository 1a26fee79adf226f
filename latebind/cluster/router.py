"""How the ingress learns from Ray which replicas there are: through a request router, which Ray gives the list."""

from collections.abc import Callable, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from latebind.cluster.fleet import ReplicaInfo

ADDRESS = "address"  # in a replica's metadata, set once at its start: host and port of its door
LOCAL = "local"  # in its metadata: the Unix socket of its door
FIGURES = "figures"  # in its routing statistics, reported every second

OnReplicas = Callable[[Sequence[ReplicaInfo]], None]


class AnnouncingRouter(RequestRouter):  # type: ignore[misc]
    """Reports all running replicas to whoever asks for one; which one it picks does not matter."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Call the callbacks among the request's arguments with all replicas, and pick any."""
        for on_replicas in pending_request.args if pending_request else ():
            if callable(on_replicas):
                on_replicas(_seen(candidate_replicas))
        return [list(candidate_replicas[:1])]


async def look(handle: Any, on_replicas: OnReplicas) -> None:
    """Call `on_replicas` with the replicas of a deployment; waits until there is one.

    Nothing is reserved, as Ray provides for callers that reach replicas by a way of their own.
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
