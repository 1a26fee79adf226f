"""Draws what workers have begun and who waits, for somebody to look at. Changes nothing. Pure."""

from collections.abc import Iterator, Mapping
from itertools import islice
from math import isfinite

from latebind.batching.lane import Lane
from latebind.batching.table import SubBatch
from latebind.batching.view import ANY_SIZE
from latebind.batching.worker import Worker
from latebind.domain.picture import BatchPicture, Doing, LanePicture, MemberPicture, WorkerPicture
from latebind.residency.held import Held

MOST_MEMBERS = 64  # of a sub-batch that are drawn one by one
NEVER = 1e9  # seconds, or requests a second: JSON has no infinity


def draw_worker(worker: Worker, now: float) -> WorkerPicture:
    """Return the batch table of a worker at `now`."""
    largest = 0 if worker.view.granularity == ANY_SIZE else worker.view.granularity
    seconds = 0.0 if worker.running is None else max(0.0, now - worker.launched[1])
    return WorkerPicture(largest, seconds, tuple(_batches(worker, now)))


def draw_lanes(
    lanes: Mapping[str, Lane], memory: Mapping[str, tuple[Held, float | None]], now: float
) -> dict[str, LanePicture]:
    """Return who waits for each model at `now`; `memory` tells of models how they lie there and their importance."""
    drawn = {}
    for name, lane in lanes.items():
        held, importance = memory.get(name, (None, None))
        drawn[name] = _lane(lane, held, importance, now)
    return drawn


def _lane(lane: Lane, held: Held | None, importance: float | None, now: float) -> LanePicture:
    """Return who waits for a model; `held` is how it lies in memory, where that is limited."""
    oldest = max(0.0, now - lane.oldest.arrived) if len(lane) else 0.0
    rate = _finite(lane.queue.rate(now))
    if held is None:
        return LanePicture(len(lane.queue), len(lane.held), oldest, rate)
    resident = tuple(sorted(held.resident))
    worth = None if importance is None else _finite(importance)
    return LanePicture(len(lane.queue), len(lane.held), oldest, rate, resident, held.loading, worth)


def _batches(worker: Worker, now: float) -> Iterator[BatchPicture]:
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
