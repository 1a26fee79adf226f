"""Makes the dashboard's picture of the workers' sub-batches and the waiting requests. Changes nothing. Pure."""

from collections.abc import Iterable, Mapping
from itertools import islice
from math import isfinite

from latebind.batching.requests import Lane
from latebind.batching.workers import ANY_SIZE, SubBatch, Worker
from latebind.domain.picture import BatchPicture, Doing, LanePicture, MemberPicture, Picture, WorkerPicture
from latebind.residency.residency import Residency

MOST_MEMBERS = 64  # of a sub-batch that are drawn one by one
NEVER = 1e9  # seconds, or requests a second: JSON has no infinity


def draw(workers: Iterable[Worker], lanes: Mapping[str, Lane], residency: Residency | None, now: float) -> Picture:
    """Return the batch tables of workers and the waiting requests of each model at `now`."""
    drawn = []
    for worker in workers:
        largest = 0 if worker.granularity == ANY_SIZE else worker.granularity
        seconds = 0.0 if worker.running is None else max(0.0, now - worker.launched[1])
        begun: list[tuple[SubBatch, Doing]] = [
            (one, "runs" if one is worker.running else "rests") for one in reversed(worker.table.entries)
        ]
        begun += [(one, "aside") for one in worker.aside]
        batches = tuple([_batch(one, doing, now) for one, doing in begun])
        drawn.append(WorkerPicture(largest, seconds, batches))
    worths = {} if residency is None else residency.worths(now)
    models = {}
    for name, lane in lanes.items():
        oldest = max(0.0, now - lane.oldest.arrived) if len(lane) else 0.0
        memory, worth = worths.get(name, (None, None))
        models[name] = LanePicture(
            len(lane.queue),
            len(lane.held),
            oldest,
            _finite(lane.queue.rate(now)),
            None if memory is None else tuple(sorted(memory.resident)),
            () if memory is None else memory.loading,
            None if worth is None else _finite(worth),
        )
    return Picture(tuple(drawn), models)


def _batch(batch: SubBatch, doing: Doing, now: float) -> BatchPicture:
    members = [
        MemberPicture(one.id, max(0.0, now - one.arrived), _finite(one.deadline - now), one.preempted)
        for one in islice(batch.members.values(), MOST_MEMBERS)
    ]
    return BatchPicture(batch.spec.name, batch.stage, batch.spec.stages, len(batch.members), doing, tuple(members))


def _finite(value: float) -> float:
    return value if isfinite(value) else NEVER
