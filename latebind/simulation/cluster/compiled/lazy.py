"""Decides which waiting requests start, by deadlines and measured costs: `batching/lazy_plus.py`, compiled."""

from math import inf

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.queues import rate
from latebind.simulation.cluster.compiled.views import State

BOUND, BOUND_PASSING, HELD_ONCE, PATIENCE = 1.0, 0.25, 0.25, 0.6
BELIEVED = 0.9
NEARLY = 1.02


@compiled
def most_urgent(s: State, machine: int) -> int:
    """Return the lane with the earliest deadline among requests that may start."""
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
    """Return the lane with the oldest request among those that may start."""
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
    """Return how many requests a worker may start: only its part of them if other workers are idle too."""
    m, count, config = of.machines(s)[machine], of.lanes(s)[lane].count, of.settings(s)[0]
    most = min(of.models(s)[of.model_of(s, machine, lane)].most, count)
    if m.workers == 1 or of.workers(s)[worker].count:
        return int(most)
    first, idle = machine * (config.slots - 2), 0
    for other in range(first, first + m.workers):
        idle += not of.workers(s)[other].count
    return int(min(most, -(-count // idle)))


@compiled
def quickest(s: State, lane: int, profile: int, most: int, others: int, now: float) -> int:
    """Return how many waiting requests start together, at most `most`, if `others` wait for other models."""
    if most == 1:
        return 1
    best, most_rate, batch = 0, 0.0, 1
    while batch:
        answered = batch / of.rest(s)[profile, 0, batch]
        if not best or answered > most_rate:
            best, most_rate = batch, answered
        batch = next_size(batch, most)
    waiting = of.lanes(s)[lane].count
    coming, least, batch = min(rate(s, lane, now), BELIEVED * most_rate), inf, 1
    while batch:
        answered = batch / of.rest(s)[profile, 0, batch]
        there = waiting + 0.5 * batch + others
        if answered > coming and there < least * (answered - coming):
            least, best = there / (answered - coming), batch
        batch = next_size(batch, most)
    return best


@compiled
def next_size(batch: int, most: int) -> int:
    """Return the batch size to try after `batch`, of 1, 2, 4, ... and `most`; 0 after the last."""
    return 0 if batch >= most else min(2 * batch, most)


@compiled
def in_time_together(s: State, lane: int, profile: int, most: int, beside: int, now: float) -> tuple[int, int]:
    """Return the first request to start and how many, at most `most`; 0 for none: `LazyPlus._in_time_together`."""
    a = of.lanes(s)[lane]
    count, first = int(min(most, a.count)), int(a.soonest)
    ends = now + (1.0 + HELD_ONCE * (a.count > most)) * of.rest(s)[profile, 0, count + beside]
    if not of.settings(s)[0].sheds or of.requests(s)[first].deadline >= ends:
        return first, count
    count = filled(s, lane, profile, count, beside, now)
    if not count:
        return 0, 0
    if not beside:
        count = enough(s, profile, count)
    due = now + (1.0 + HELD_ONCE) * of.rest(s)[profile, 0, count + beside]
    while of.requests(s)[first].deadline < due:
        first = int(of.requests(s)[first].later)
    return first, count


@compiled
def filled(s: State, lane: int, profile: int, most: int, beside: int, now: float) -> int:
    """Return the most requests that can start now, beside `beside` others, and all be in time with the usual delay."""
    least = 0
    while least < most:
        middle = (least + most + 1) // 2
        ends = now + (1.0 + HELD_ONCE) * of.rest(s)[profile, 0, middle + beside]
        request = of.lanes(s)[lane].latest
        for _ in range(middle - 1):
            request = of.requests(s)[request].sooner
        if of.requests(s)[request].deadline >= ends:
            least = middle
        else:
            most = middle - 1
    return least


@compiled
def enough(s: State, profile: int, most: int) -> int:
    """Return the smallest batch of 1, 2, 4, ... and `most` that answers nearly as many a second as any."""
    fastest, batch = 0.0, 1
    while batch:
        fastest = max(fastest, batch / of.rest(s)[profile, 0, batch])
        batch = next_size(batch, most)
    batch = 1
    while NEARLY * (batch / of.rest(s)[profile, 0, batch]) < fastest:
        batch = next_size(batch, most)
    return batch


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
def newcomers_at_a_boundary(s: State, machine: int, worker: int, now: float) -> tuple[int, int, int]:
    """Return the lane of requests that preempt a batch, the first of them and how many; lane -1 if there are none.

    Lanes are tried in the order of what their most urgent request takes alone.
    """
    w, config = of.workers(s)[worker], of.settings(s)[0]
    if w.count > 1:
        return -1, 0, 0
    closed = is_closed(s, machine, w.top, now)
    chosen, begins, count, shortest = -1, 0, 0, inf
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        a, model = of.lanes(s)[lane], of.models(s)[of.model_of(s, machine, lane)]
        alone, own = of.rest(s)[model.profile, 0, 1], lane % config.models == of.batches(s)[w.top].model
        if a.open and not (own and closed) and (alone < shortest or (alone == shortest and lane < chosen)):
            begun = begun_of(s, worker, lane % config.models)
            if model.worth > begun:
                first, n = in_time_together(s, lane, model.profile, model.worth - begun, begun, now)
                if n and may_pass(s, machine, w.top, lane, first, n, now):
                    chosen, begins, count, shortest = lane, first, n, alone
        lane = a.next_waiting - 1
    return chosen, begins, count


@compiled
def is_closed(s: State, machine: int, batch: int, now: float) -> bool:
    """Tell whether other models have waited so long that a batch must run to its end without newcomers."""
    b, config = of.batches(s)[batch], of.settings(s)[0]
    profile = of.models(s)[of.model_at(s, machine, b.model)].profile
    most = PATIENCE * of.rest(s)[profile, 0, b.count]
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if a.open and lane % config.models != b.model and now - of.requests(s)[a.first].arrived > most:
            return True
        lane = a.next_waiting - 1
    return False


@compiled
def may_pass(s: State, machine: int, top: int, lane: int, first: int, count: int, now: float) -> bool:
    """Tell whether newcomers may start before a batch continues: if that pays, and everybody stays in time.

    They are `count` requests from `first` on. It must not hold up anybody for too long either.
    """
    b, config = of.batches(s)[top], of.settings(s)[0]
    own = of.models(s)[of.model_at(s, machine, b.model)].profile
    model = of.models(s)[of.model_of(s, machine, lane)].profile
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
    return all_in_time(s, top, own, model, lane, first, count, now)


@compiled
def all_in_time(s: State, top: int, own: int, model: int, lane: int, first: int, count: int, now: float) -> bool:
    """Tell whether newcomers make no request late that would be in time without them: `Profiled.all_in_time`."""
    b, joins = of.batches(s)[top], lane % of.settings(s)[0].models == of.batches(s)[top].model
    left = of.rest(s)[own, b.stage, b.count]
    if joins:
        caught_up = now + (of.rest(s)[own, 0, count] - of.rest(s)[own, b.stage, count])
        ends = last = caught_up + of.rest(s)[own, b.stage, b.count + count]
    else:
        ends = now + of.rest(s)[model, 0, count]
        last = ends + left
    request = first
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
