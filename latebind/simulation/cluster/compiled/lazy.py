"""Who begins, by deadlines and measured costs: `batching/lazy_plus.py`, compiled."""

from math import inf

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.queues import rate
from latebind.simulation.cluster.compiled.views import State

BOUND, BOUND_PASSING, HELD_ONCE, PATIENCE = 1.0, 0.25, 0.25, 0.6
CROWD = 2.0


@compiled
def most_urgent(s: State, machine: int) -> int:
    """Return the lane of those who may begin whose first deadline comes first."""
    best, due = -1, inf
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if a.open:
            deadline = of.requests(s)[a.soonest].deadline
            if best < 0 or deadline < due or (deadline == due and lane < best):
                best, due = lane, deadline
        lane = a.next_waiting - 1
    return best


@compiled
def oldest(s: State, machine: int) -> int:
    """Return the lane of those who may begin whose first request came first."""
    best, came = -1, inf
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if a.open:
            arrived = of.requests(s)[a.first].arrived
            if best < 0 or arrived < came or (arrived == came and lane < best):
                best, came = lane, arrived
        lane = a.next_waiting - 1
    return best


@compiled
def share(s: State, machine: int, worker: int, lane: int) -> int:
    """Return how many a worker may begin: where others are idle too, its part."""
    m, count, config = of.machines(s)[machine], of.lanes(s)[lane].count, of.settings(s)[0]
    most = min(of.models(s)[m.kind * config.models + lane % config.models].most, count)
    if m.workers == 1 or of.workers(s)[worker].count:
        return int(most)
    first, idle = machine * (config.slots - 2), 0
    for other in range(first, first + m.workers):
        idle += not of.workers(s)[other].count
    return int(min(most, -(-count // idle)))


@compiled
def quickest(s: State, lane: int, profile: int, most: int, now: float) -> int:
    """Return how many of those who wait begin together, at most `most`."""
    if most == 1:
        return 1
    best, most_rate, batch = 0, 0.0, 1
    while batch:
        answered = batch / of.rest(s)[profile, 0, batch]
        if not best or answered > most_rate:
            best, most_rate = batch, answered
        batch = next_size(batch, most)
    waiting = of.lanes(s)[lane].count
    if waiting >= CROWD * best:
        return best
    coming, least, batch = rate(s, lane, now), inf, 1
    while batch:
        answered = batch / of.rest(s)[profile, 0, batch]
        if answered > coming and 0.5 * waiting + batch < least * (answered - coming):
            least, best = (0.5 * waiting + batch) / (answered - coming), batch
        batch = next_size(batch, most)
    return best


@compiled
def next_size(batch: int, most: int) -> int:
    """Return the size that is looked at behind another, of 1, 2, 4, ... and `most`; 0 behind the last."""
    return 0 if batch >= most else min(2 * batch, most)


@compiled
def begun_of(s: State, worker: int, model: int) -> int:
    """Return how many requests of a model a worker has begun."""
    begun, batch = 0, of.workers(s)[worker].bottom
    while batch:
        b = of.batches(s)[batch]
        if b.model == model:
            begun += b.count
        batch = b.above
    return begun


@compiled
def newcomers_at_a_boundary(s: State, machine: int, worker: int, now: float) -> tuple[int, int, float]:
    """Return the lane, how many of it, and if some of these cannot be in time, the end that they cannot await.

    Lane -1: nobody is let past. Lanes go in the order of what the most urgent takes alone.
    """
    w, config, kind = of.workers(s)[worker], of.settings(s)[0], of.machines(s)[machine].kind
    if w.count > 1:
        return -1, 0, inf
    closed = is_closed(s, machine, w.top, now)
    chosen, count, until, first = -1, 0, inf, inf
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        a, model = of.lanes(s)[lane], of.models(s)[kind * config.models + lane % config.models]
        alone, own = of.rest(s)[model.profile, 0, 1], lane % config.models == of.batches(s)[w.top].model
        if a.open and not (own and closed) and (alone < first or (alone == first and lane < chosen)):
            begun = begun_of(s, worker, lane % config.models)
            n = min(model.worth - begun, a.count)
            if n > 0:
                ends = lost_at(s, lane, model.profile, n, n + begun, now)
                if ends < inf or may_pass(s, machine, w.top, lane, n, now):
                    chosen, count, until, first = lane, n, ends, alone
        lane = a.next_waiting - 1
    return chosen, count, until


@compiled
def is_closed(s: State, machine: int, batch: int, now: float) -> bool:
    """Tell whether those of another model have waited so long that the batch is to come to its end."""
    b, config = of.batches(s)[batch], of.settings(s)[0]
    profile = of.models(s)[of.machines(s)[machine].kind * config.models + b.model].profile
    most = PATIENCE * of.rest(s)[profile, 0, b.count]
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if a.open and lane % config.models != b.model and now - of.requests(s)[a.first].arrived > most:
            return True
        lane = a.next_waiting - 1
    return False


@compiled
def lost_at(s: State, lane: int, profile: int, count: int, together: int, now: float) -> float:
    """Return the end of a batch that some of the most urgent `count` cannot await; infinity where all can."""
    a = of.lanes(s)[lane]
    whole = of.rest(s)[profile, 0, together]
    ends = now + (1.0 + HELD_ONCE) * whole if a.count > count else now + whole
    lost = of.settings(s)[0].sheds and of.requests(s)[a.soonest].deadline < ends
    return ends if lost else inf


@compiled
def may_pass(s: State, machine: int, top: int, lane: int, count: int, now: float) -> bool:
    """Tell whether newcomers may begin before a batch goes on: it pays, holds nobody up and leaves all in time."""
    b, config, kind = of.batches(s)[top], of.settings(s)[0], of.machines(s)[machine].kind
    own = of.models(s)[kind * config.models + b.model].profile
    model = of.models(s)[kind * config.models + lane % config.models].profile
    whole, running = of.rest(s)[own, 0, b.count], b.count
    if lane % config.models == b.model:
        caught_up = of.rest(s)[own, 0, count] - of.rest(s)[own, b.stage, count]
        left, after = of.rest(s)[own, b.stage, running], of.rest(s)[own, b.stage, running + count]
        if not (running + count) * (caught_up + after) < running * left + count * (left + of.rest(s)[own, 0, count]):
            return False
        most = BOUND * whole - caught_up
    else:
        delay = of.rest(s)[model, 0, count]
        if not running * delay < count * of.rest(s)[own, b.stage, running]:
            return False
        most = BOUND_PASSING * whole - delay
    request = b.soonest
    while request:
        if of.requests(s)[request].delayed > most:
            return False
        request = of.requests(s)[request].later
    return all_in_time(s, top, own, model, lane, count, now)


@compiled
def all_in_time(s: State, top: int, own: int, model: int, lane: int, count: int, now: float) -> bool:
    """Tell whether all stay in time who would be: `Profiled.all_in_time`."""
    b, joins = of.batches(s)[top], lane % of.settings(s)[0].models == of.batches(s)[top].model
    left = of.rest(s)[own, b.stage, b.count]
    if joins:
        caught_up = now + (of.rest(s)[own, 0, count] - of.rest(s)[own, b.stage, count])
        ends = last = caught_up + of.rest(s)[own, b.stage, b.count + count]
    else:
        ends = now + of.rest(s)[model, 0, count]
        last = ends + left
    request = of.lanes(s)[lane].soonest
    for _ in range(count):
        deadline = of.requests(s)[request].deadline
        if deadline < ends and now + of.rest(s)[model, 0, 1] <= deadline:
            return False
        request = of.requests(s)[request].later
    request = b.soonest
    while request:
        deadline = of.requests(s)[request].deadline
        if now + left <= deadline and last > deadline:
            return False
        request = of.requests(s)[request].later
    return True
