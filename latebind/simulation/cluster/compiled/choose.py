"""Chooses what runs next for models with learned caches, by answers a second and deadlines: `late.py`, compiled."""

from math import inf

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.layout import NOTHING
from latebind.simulation.cluster.compiled.lazy import next_size, share
from latebind.simulation.cluster.compiled.queues import rate
from latebind.simulation.cluster.compiled.views import State

NEARLY_ALL, NEARLY = 0.7, 1.02
HELD, QUICK, MARGIN, BETTER = 1.5, 0.75, 1.5, 1.02


@compiled
def weigh(s: State, machine: int, worker: int, now: float) -> tuple[int, int, float]:
    """Write all batches that could run next to `choices` and return their number, or a batch with members to shed.

    These are the members whose deadline is before the time that is returned with the batch. A full batch runs whatever
    else there is.
    """
    m, config, count = of.machines(s)[machine], of.settings(s)[0], 0
    waiting, batch = m.ready, of.workers(s)[worker].bottom
    while batch:
        waiting += of.batches(s)[batch].count
        batch = of.batches(s)[batch].above
    batch = of.workers(s)[worker].bottom
    while batch:
        b = of.batches(s)[batch]
        model = of.models(s)[of.model_at(s, machine, b.model)]
        due, lane = of.requests(s)[b.soonest].deadline, machine * config.models + b.model
        earliest = now + QUICK * of.soon(s)[model.profile, b.stage, 1]
        if config.sheds and due < earliest:
            return 0, batch, earliest
        full = b.count >= model.most
        count = 0 if full else count
        n = together(s, lane, model.profile, b.stage, b.count, waiting, model.most, now)
        first, n = in_time_at(s, model.profile, batch, n, now)
        write(s, count, model.profile, b.stage, n, lane, first, batch)
        count += 1
        if full:
            return count, 0, inf
        batch = b.above
    lane = m.waiting_lanes - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if a.open:
            profile = of.models(s)[of.model_of(s, machine, lane)].profile
            most = share(s, machine, worker, lane)
            n = together(s, lane, profile, NOTHING, a.count, waiting, most, now)
            first, n = in_time(s, lane, profile, n, now)
            write(s, count, profile, NOTHING, n, lane, first, NOTHING)
            count += 1
        lane = a.next_waiting - 1
    return count, 0, inf


@compiled
def write(s: State, place: int, profile: int, stage: int, count: int, lane: int, first: int, batch: int) -> None:
    """Write a choice: `count` requests from `first` on, of a batch, or of those that wait if the batch is 0."""
    c = of.choices(s)[place]
    c.rate, c.seconds = of.best(s)[profile, stage, count], of.soon(s)[profile, stage, count]
    c.alone, c.due = of.rest(s)[profile, stage, 1], of.requests(s)[first].deadline
    c.first, c.count, c.lane, c.batch = first, count, lane, batch


@compiled
def best_choice(s: State, count: int, now: float) -> int:
    """Return the choice with the most answers a second, or a more urgent one that does not make the best choice late.

    Among equal choices, started batches come first in their order, then waiting requests in order of their models.
    """
    best, most = -1, -inf
    for place in range(count):
        c = of.choices(s)[place]
        value = c.rate * (BETTER if c.batch else 1.0)
        if value > most or (value == most and comes_before(s, place, best)):
            best, most = place, value
    urgent, due = -1, inf
    for place in range(count):
        c = of.choices(s)[place]
        first = c.due < due or (c.due == due and comes_before(s, place, urgent))
        if first and place != best and hurries(s, place, best, now):
            urgent, due = place, c.due
    return best if urgent < 0 else urgent


@compiled
def comes_before(s: State, place: int, other: int) -> bool:
    """Tell whether a choice is considered before an earlier one. Waiting requests are ordered by model."""
    return bool(other < 0 or (not of.choices(s)[other].batch and of.choices(s)[place].lane < of.choices(s)[other].lane))


@compiled
def hurries(s: State, place: int, best: int, now: float) -> bool:
    """Tell whether a choice would be late after the best one, but in time before it without making that one late."""
    c, then = of.choices(s)[place], of.choices(s)[best].seconds
    if now + c.alone > c.due or now + then + MARGIN * c.alone <= c.due:
        return False
    return bool(of.choices(s)[best].due >= now + c.alone + then)


@compiled
def in_time_at(s: State, profile: int, batch: int, count: int, now: float) -> tuple[int, int]:
    """Return the first request and the size of the largest part of a batch whose members can be in time together."""
    b = of.batches(s)[batch]
    first, left = int(b.soonest), int(b.count)
    ends = now + of.soon(s)[profile, b.stage, count]
    if not of.settings(s)[0].sheds or of.requests(s)[first].deadline >= ends:
        return first, count
    count = fitting(s, profile, b.stage, count, b.latest, now, 1.0)
    due = now + of.soon(s)[profile, b.stage, count]
    while first and of.requests(s)[first].deadline < due:
        first = int(of.requests(s)[first].later)
        left -= 1
    if not first:
        return int(b.soonest), 1
    return first, min(count, left)


@compiled
def fitting(s: State, profile: int, stage: int, most: int, latest: int, now: float, held: float) -> int:
    """Return the largest number of requests, at least one, that can all be in time together. `latest` is due last."""
    least = 1
    while least < most:
        middle, request = (least + most + 1) // 2, latest
        for _ in range(middle - 1):
            request = of.requests(s)[request].sooner
        if of.requests(s)[request].deadline >= now + held * of.soon(s)[profile, stage, middle]:
            least = middle
        else:
            most = middle - 1
    return least


@compiled
def in_time(s: State, lane: int, profile: int, count: int, now: float) -> tuple[int, int]:
    """Return the first and the number of the most urgent requests with nearly as good a chance as any that waits."""
    a = of.lanes(s)[lane]
    if not of.settings(s)[0].sheds:
        return a.soonest, min(count, a.count)
    count = fitting(s, profile, NOTHING, count, a.latest, now, HELD)
    seconds, shares = of.chance_seconds(s)[profile, count], of.chance_shares(s)[profile, count]
    ends, slack, place = of.ends(s)[profile], (of.requests(s)[a.latest].deadline - now) / HELD, 0
    while place < ends and seconds[place] <= slack:
        place += 1
    wanted = NEARLY_ALL * (shares[place - 1] if place else 0.0)
    least = 0.0
    if wanted > 0.0:
        place = 0
        while place < ends - 1 and shares[place] < wanted:
            place += 1
        least = seconds[place]
    due = now + HELD * least
    first, passed = a.soonest, 0
    while first and of.requests(s)[first].deadline < due:
        first = of.requests(s)[first].later
        passed += 1
    if not first:
        return a.soonest, 1
    return first, min(count, a.count - passed)


@compiled
def together(s: State, lane: int, profile: int, stage: int, count: int, waiting: int, most: int, now: float) -> int:
    """Return how many of the `count` requests at a stage run together, at most `most`, if `waiting` wait anywhere."""
    limit = min(most, count)
    if limit == 1:
        return 1
    least_of_all, size = inf, 1
    while size:
        least_of_all = min(least_of_all, of.soon(s)[profile, stage, size] / size)
        size = next_size(size, most)
    least_here, size = inf, 1
    while size:
        least_here = min(least_here, of.soon(s)[profile, stage, size] / size)
        size = next_size(size, limit)
    size = 1
    while of.soon(s)[profile, stage, size] / size > NEARLY * least_here:
        size = next_size(size, limit)
    best, least, coming = size, inf, rate(s, lane, now)
    busy, part, others = coming / of.answered(s)[profile, most], coming * of.alive(s)[profile, stage], waiting - count
    size = 1
    while size:
        cost = of.soon(s)[profile, stage, size] / size
        free = 1.0 - busy - part * (cost - least_of_all)
        if free > 0.0 and cost * (0.5 * (count + size) + others) < least * free:
            least, best = cost * (0.5 * (count + size) + others) / free, size
        size = next_size(size, limit)
    return best
