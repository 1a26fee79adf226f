"""Makes the dashboard's picture of the workers' sub-batches and the waiting requests. Changes nothing. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import isfinite

from latebind.batching.admission import Lane
from latebind.batching.policy import ANY_SIZE
from latebind.batching.table import SubBatch
from latebind.batching.workers import WorkerState
from latebind.domain.picture import BatchPicture, Doing, LanePicture, MemberPicture, Picture, WorkerPicture
from latebind.residency.model_state import ModelState
from latebind.residency.residency import Residency

MOST_MEMBERS = 64  # of a sub-batch that are drawn one by one
NEVER = 1e9  # seconds, or requests a second: JSON has no infinity


def draw(workers: Iterable[WorkerState], lanes: Mapping[str, Lane], residency: Residency | None, now: float) -> Picture:
    """Return the batch tables of workers and the waiting requests of each model at `now`."""
    worths = {} if residency is None else residency.worths(now)
    models = {}
    for name, lane in lanes.items():
        memory, worth = worths.get(name, (None, None))
        models[name] = _lane(lane, memory, worth, now)
    return Picture(tuple([_worker(worker, now) for worker in workers]), models)


def _worker(worker: WorkerState, now: float) -> WorkerPicture:
    largest = 0 if worker.view.granularity == ANY_SIZE else worker.view.granularity
    seconds = 0.0 if worker.running is None else max(0.0, now - worker.launched[1])
    return WorkerPicture(largest, seconds, tuple(_batches(worker, now)))


def _lane(lane: Lane, memory: ModelState | None, worth: float | None, now: float) -> LanePicture:
    """Return the waiting requests of a model; `memory` is what of it is in memory, where that is limited."""
    oldest = max(0.0, now - lane.oldest.arrived) if len(lane) else 0.0
    rate = _finite(lane.queue.rate(now))
    if memory is None:
        return LanePicture(len(lane.queue), len(lane.held), oldest, rate)
    resident = tuple(sorted(memory.resident))
    worth = None if worth is None else _finite(worth)
    return LanePicture(len(lane.queue), len(lane.held), oldest, rate, resident, memory.loading, worth)


def _batches(worker: WorkerState, now: float) -> Iterator[BatchPicture]:
    for batch in reversed(worker.table.entries):
        yield _batch(batch, Doing.RUNS if batch is worker.running else Doing.RESTS, now)
    for batch in worker.aside:
        yield _batch(batch, Doing.ASIDE, now)


def _batch(batch: SubBatch, doing: Doing, now: float) -> BatchPicture:
    members = tuple(
        [
            MemberPicture(one.id, max(0.0, now - one.arrived), _finite(one.deadline - now), one.preempted)
            for one in islice(batch.members.values(), MOST_MEMBERS)
        ]
    )
    return BatchPicture(batch.spec.name, batch.stage, batch.spec.stages, len(batch.members), doing, members)


def _finite(value: float) -> float:
    return value if isfinite(value) else NEVER
