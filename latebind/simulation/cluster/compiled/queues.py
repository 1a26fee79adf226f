"""Who waits for a model on a machine, in the order of arrival and in that of deadlines: `batching/queue.py`, compiled.

A lane's requests are all held, or may all begin; of both it is known how they came.
"""

from math import inf

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.views import State

NEWEST = 0.05  # of the mean gap between arrivals


@compiled
def count_in(s: State, lane: int, arrived: float) -> None:
    """Take note of when somebody came to those held, or to those who may begin."""
    queue = of.queues(s)[2 * lane + of.lanes(s)[lane].open]
    if queue.seen:
        gap = arrived - queue.last
        if gap >= 0.0:
            queue.gap = gap if queue.gap == inf else queue.gap + NEWEST * (gap - queue.gap)
    else:
        queue.seen, queue.gap = 1, inf
    queue.last = arrived
    queue.arrivals += arrived


@compiled
def append(s: State, machine: int, lane: int, request: int) -> None:
    """Put a request at the end of a lane, and in its place among the deadlines."""
    a, r = of.lanes(s)[lane], of.requests(s)[request]
    count_in(s, lane, r.arrived)
    if not a.count:
        enter_waiting(s, machine, lane)
    a.count += 1
    r.next, r.previous = 0, a.newest
    if a.newest:
        of.requests(s)[a.newest].next = request
    else:
        a.first = request
    a.newest = request
    sooner = a.latest
    while sooner:
        other = of.requests(s)[sooner]
        if other.deadline < r.deadline or (other.deadline == r.deadline and other.number < r.number):
            break
        sooner = other.sooner
    r.sooner = sooner
    r.later = of.requests(s)[sooner].later if sooner else a.soonest
    if sooner:
        of.requests(s)[sooner].later = request
    else:
        a.soonest = request
    if r.later:
        of.requests(s)[r.later].sooner = request
    else:
        a.latest = request


@compiled
def remove(s: State, machine: int, lane: int, request: int) -> None:
    """Take a request out of a lane."""
    a, r = of.lanes(s)[lane], of.requests(s)[request]
    a.count -= 1
    queue = of.queues(s)[2 * lane + a.open]
    queue.arrivals = queue.arrivals - r.arrived if a.count else 0.0
    if r.previous:
        of.requests(s)[r.previous].next = r.next
    else:
        a.first = r.next
    if r.next:
        of.requests(s)[r.next].previous = r.previous
    else:
        a.newest = r.previous
    if r.sooner:
        of.requests(s)[r.sooner].later = r.later
    else:
        a.soonest = r.later
    if r.later:
        of.requests(s)[r.later].sooner = r.sooner
    else:
        a.latest = r.sooner
    if not a.count:
        leave_waiting(s, machine, lane)


@compiled
def enter_waiting(s: State, machine: int, lane: int) -> None:
    """Count a lane among those where somebody waits."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    a.next_waiting, a.previous_waiting = m.waiting_lanes, 0
    if m.waiting_lanes:
        of.lanes(s)[m.waiting_lanes - 1].previous_waiting = lane + 1
    m.waiting_lanes = lane + 1


@compiled
def leave_waiting(s: State, machine: int, lane: int) -> None:
    """Count a lane no more among those where somebody waits."""
    a = of.lanes(s)[lane]
    if a.previous_waiting:
        of.lanes(s)[a.previous_waiting - 1].next_waiting = a.next_waiting
    else:
        of.machines(s)[machine].waiting_lanes = a.next_waiting
    if a.next_waiting:
        of.lanes(s)[a.next_waiting - 1].previous_waiting = a.previous_waiting


@compiled
def move(s: State, machine: int, lane: int, opens: int) -> None:
    """Let those begin who were held, or hold those who might have begun."""
    a, m = of.lanes(s)[lane], of.machines(s)[machine]
    if a.open == opens:
        return
    of.queues(s)[2 * lane + a.open].arrivals = 0.0
    a.open = opens
    m.ready += a.count if opens else -a.count
    work = a.count * each_of(s, machine, lane)
    if opens:
        m.backlog += work
    else:
        m.backlog = m.backlog - work if m.ready else 0.0
    request = a.first
    while request:
        r = of.requests(s)[request]
        count_in(s, lane, r.arrived)
        request = r.next


@compiled
def rate(s: State, lane: int, now: float) -> float:
    """Return how many requests of those who may begin come a second, of late."""
    queue = of.queues(s)[2 * lane + 1]
    if not queue.seen:
        return 0.0
    gap, since = queue.gap, now - queue.last
    if gap < since < inf:
        gap += NEWEST * (since - gap)
    return 1.0 / gap if gap > 0.0 else inf


@compiled
def waited(s: State, lane: int, now: float) -> float:
    """Return how many seconds all have waited together."""
    a = of.lanes(s)[lane]
    return float(a.count * now - of.queues(s)[2 * lane + a.open].arrivals)


@compiled
def work_left(s: State, machine: int, lane: int) -> None:
    """Count one less who waits."""
    m = of.machines(s)[machine]
    m.waiting -= 1
    if of.lanes(s)[lane].open:
        m.ready -= 1
        m.backlog = m.backlog - each_of(s, machine, lane) if m.ready else 0.0


@compiled
def each_of(s: State, machine: int, lane: int) -> float:
    """Return the seconds of work that a request of a model is."""
    return float(of.models(s)[of.model_of(s, machine, lane)].each)
