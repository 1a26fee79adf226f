"""The batches that workers have started: `batching/table.py`, compiled. Members of a batch are ordered by deadline."""

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.views import State


@compiled
def lane_of(s: State, machine: int, batch: int) -> int:
    """Return the lane of a batch. A lane is a model on a machine."""
    return int(machine * of.settings(s)[0].models + of.batches(s)[batch].model)


@compiled
def begin(s: State, machine: int, worker: int, model: int, stage: int) -> int:
    """Put a new batch on top of a worker's stack of batches and return it."""
    tally, w = of.tally(s)[0], of.workers(s)[worker]
    batch = tally.free_batch
    b = of.batches(s)[batch]
    tally.free_batch = b.above
    tally.spare_batches -= 1
    b.soonest = b.latest = b.count = b.rests = b.above = b.ran = 0
    b.stage, b.model, b.below = stage, model, w.top
    if w.top:
        of.batches(s)[w.top].above = batch
    else:
        w.bottom = batch
    w.top = batch
    w.count += 1
    of.machines(s)[machine].begun += 1
    of.lanes(s)[machine * of.settings(s)[0].models + model].begun += 1
    return int(batch)


@compiled
def drop(s: State, machine: int, worker: int, batch: int) -> None:
    """Remove an empty batch."""
    b, w, tally = of.batches(s)[batch], of.workers(s)[worker], of.tally(s)[0]
    if b.below:
        of.batches(s)[b.below].above = b.above
    else:
        w.bottom = b.above
    if b.above:
        of.batches(s)[b.above].below = b.below
    else:
        w.top = b.below
    w.count -= 1
    of.machines(s)[machine].begun -= 1
    of.lanes(s)[lane_of(s, machine, batch)].begun -= 1
    b.above = tally.free_batch
    tally.free_batch = batch
    tally.spare_batches += 1


@compiled
def join(s: State, batch: int, request: int) -> None:
    """Append a request to a batch."""
    b, r = of.batches(s)[batch], of.requests(s)[request]
    r.sooner, r.later = b.latest, 0
    if b.latest:
        of.requests(s)[b.latest].later = request
    else:
        b.soonest = request
    b.latest = request
    b.count += 1


@compiled
def leave(s: State, batch: int, request: int) -> None:
    """Remove a request from a batch."""
    b, r = of.batches(s)[batch], of.requests(s)[request]
    if r.sooner:
        of.requests(s)[r.sooner].later = r.later
    else:
        b.soonest = r.later
    if r.later:
        of.requests(s)[r.later].sooner = r.sooner
    else:
        b.latest = r.sooner
    b.count -= 1


@compiled
def rest(s: State, batch: int, now: float) -> None:
    """Mark a batch as preempted by another one."""
    if batch:
        of.batches(s)[batch].rests, of.batches(s)[batch].preempted = 1, now


@compiled
def resume(s: State, batch: int, now: float) -> None:
    """Continue a batch that was preempted."""
    b = of.batches(s)[batch]
    if batch and b.rests:
        request = b.soonest
        while request:
            of.requests(s)[request].delayed += now - b.preempted
            request = of.requests(s)[request].later
        b.rests = 0


@compiled
def settle(s: State, machine: int, worker: int, batch: int, now: float) -> None:
    """Remove a batch if it is empty, or merge it with a resting batch of the same model at the same stage."""
    w, b = of.workers(s)[worker], of.batches(s)[batch]
    w.moved = 0
    if not b.count:
        drop(s, machine, worker, batch)
        resume(s, w.top, now)
        return
    other = w.bottom
    while other:
        o = of.batches(s)[other]
        if other != batch and o.model == b.model and o.stage == b.stage:
            drop(s, machine, worker, batch)
            if other == w.top:
                resume(s, other, now)
            merge(s, batch, other)
            return
        other = o.above
    profile = of.models(s)[of.model_at(s, machine, b.model)].profile
    if not (b.stage and of.lookups(s)[profile, b.stage - 1]):
        w.moved = batch


@compiled
def going(s: State, worker: int) -> int:
    """Return the batch to continue when nobody waits to start; 0 if there is none, or if the policy has to choose."""
    w = of.workers(s)[worker]
    if of.settings(s)[0].graph:
        return int(w.top)
    if w.moved and of.batches(s)[w.moved].count == of.batches(s)[w.moved].ran:
        return int(w.moved)
    return int(w.top if w.count == 1 and of.batches(s)[w.top].count == 1 else 0)


@compiled
def merge(s: State, source: int, target: int) -> None:
    """Move all members of a batch into another. Among equal deadlines, members that were there before go first."""
    request, before = of.batches(s)[source].soonest, of.batches(s)[target].soonest
    of.batches(s)[target].soonest = of.batches(s)[target].latest = of.batches(s)[target].count = 0
    while request or before:
        if before and (not request or of.requests(s)[before].deadline <= of.requests(s)[request].deadline):
            one, before = before, of.requests(s)[before].later
        else:
            one, request = request, of.requests(s)[request].later
        join(s, target, one)
    of.batches(s)[source].soonest = of.batches(s)[source].latest = of.batches(s)[source].count = 0


@compiled
def put_in(s: State, batch: int, request: int) -> None:
    """Insert a request into a batch by its deadline."""
    b, r = of.batches(s)[batch], of.requests(s)[request]
    sooner = b.latest
    while sooner and of.requests(s)[sooner].deadline > r.deadline:
        sooner = of.requests(s)[sooner].sooner
    r.sooner = sooner
    r.later = of.requests(s)[sooner].later if sooner else b.soonest
    if sooner:
        of.requests(s)[sooner].later = request
    else:
        b.soonest = request
    if r.later:
        of.requests(s)[r.later].sooner = request
    else:
        b.latest = request
    b.count += 1
