"""The requests that wait for a model on a machine, by arrival and by deadline: `batching/queue.py`, compiled.

The requests of a lane are either all held, until their model is in memory, or may all start. For each of these two
states a lane has a `QUEUE` record with the arrivals in that state.
"""

from math import inf

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.views import State

NEWEST = 0.05  # weight of the newest gap in the mean gap between arrivals


@compiled
def count_in(s: State, lane: int, arrived: float) -> None:
    """Note the arrival of a request among those held or those that may start: the mean gap and the sum of times."""
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
    """Append a request to a lane, and insert it by its deadline; among equal deadlines by its number."""
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
    """Remove a request from a lane."""
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
    """Add a lane to the list of those with waiting requests."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    a.next_waiting, a.previous_waiting = m.waiting_lanes, 0
    if m.waiting_lanes:
        of.lanes(s)[m.waiting_lanes - 1].previous_waiting = lane + 1
    m.waiting_lanes = lane + 1


@compiled
def leave_waiting(s: State, machine: int, lane: int) -> None:
    """Remove a lane from the list of those with waiting requests."""
    a = of.lanes(s)[lane]
    if a.previous_waiting:
        of.lanes(s)[a.previous_waiting - 1].next_waiting = a.next_waiting
    else:
        of.machines(s)[machine].waiting_lanes = a.next_waiting
    if a.next_waiting:
        of.lanes(s)[a.next_waiting - 1].previous_waiting = a.previous_waiting


@compiled
def move(s: State, machine: int, lane: int, opens: int) -> None:
    """Let the held requests of a lane start (`opens` 1), or hold those that could have started (0)."""
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
    """Return the recent arrival rate, a second, of requests that may start."""
    queue = of.queues(s)[2 * lane + 1]
    if not queue.seen:
        return 0.0
    gap, since = queue.gap, now - queue.last
    if gap < since < inf:
        gap += NEWEST * (since - gap)
    return 1.0 / gap if gap > 0.0 else inf


@compiled
def waited(s: State, lane: int, now: float) -> float:
    """Return the sum of the seconds that the requests of a lane have waited."""
    a = of.lanes(s)[lane]
    return float(a.count * now - of.queues(s)[2 * lane + a.open].arrivals)


@compiled
def work_left(s: State, machine: int, lane: int) -> None:
    """Count one waiting request less, and its work."""
    m = of.machines(s)[machine]
    m.waiting -= 1
    if of.lanes(s)[lane].open:
        m.ready -= 1
        m.backlog = m.backlog - each_of(s, machine, lane) if m.ready else 0.0


@compiled
def each_of(s: State, machine: int, lane: int) -> float:
    """Return the seconds of work for each request of a lane's model."""
    return float(of.models(s)[of.model_of(s, machine, lane)].each)
