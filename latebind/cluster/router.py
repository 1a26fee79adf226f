"""How the ingress hears from Ray which replicas there are: Ray asks a request router of ours, which asks nobody."""

from collections.abc import Callable, Sequence
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from latebind.cluster.fleet import Seen

ADDRESS = "address"  # in what a replica tells of itself once, as it starts: host and port of its door
LOCAL = "local"  # beside it: the Unix socket
FIGURES = "figures"  # in what it tells every second

Hear = Callable[[Sequence[Seen]], None]


class Telling(RequestRouter):  # type: ignore[misc]
    """Tells whoever picks a replica of all that run; the pick itself counts for nothing."""

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Let those hear that are arguments of the request; any replica will do."""
        for hear in pending_request.args if pending_request else ():
            if callable(hear):
                hear(_seen(candidate_replicas))
        return [list(candidate_replicas[:1])]


async def look(handle: Any, hear: Hear) -> None:
    """Have `hear` called with the replicas of a deployment; waits where there are none.

    Nothing is reserved, as Ray has it for those who send requests to replicas by a way of their own.
    """
    async with handle.choose_replica(hear, _reserve=False):
        pass


def _seen(replicas: Sequence[RunningReplica]) -> list[Seen]:
    found = []
    for replica in replicas:
        host, port = replica.replica_metadata[ADDRESS]
        figures, local = replica.routing_stats.get(FIGURES, {}), replica.replica_metadata[LOCAL]
        found.append(Seen(replica.replica_id.unique_id, host, port, figures, local))
    return found
