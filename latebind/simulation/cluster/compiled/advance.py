"""The main loop: takes requests in order of time, and before each of them handles all events due on machines."""

from math import inf

import numpy as np
from numpy.typing import NDArray

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled, entry
from latebind.simulation.cluster.compiled.heap import call_off
from latebind.simulation.cluster.compiled.machine import loaded, stage_done, woke
from latebind.simulation.cluster.compiled.memory import evict
from latebind.simulation.cluster.compiled.routing import send
from latebind.simulation.cluster.compiled.views import State

SPARE = 4  # places of pools that one request may take


@entry
def advance(s: State, limit: float, start: np.uint64, again: int) -> bool:
    """Simulate all events before `limit`, and those on machines at `limit` too. Return False if a pool is too small.

    In that case the caller enlarges the pools and calls again. If `again` is not negative, it is a request that a
    machine had when it died, and it is sent again at `limit`, which is the current time.
    """
    tally, requests = of.tally(s)[0], of.settings(s)[0].requests
    if again >= 0:
        if is_full(s):
            return False
        send(s, again, limit, start)
        return True
    while True:
        number = tally.next
        time = of.times(s)[number] if number < requests else inf
        comes = number < requests and time < limit
        happen(s, time if comes else limit)
        if not comes:
            return True
        if is_full(s):
            return False
        tally.next += 1
        send(s, number, time, start)


@compiled
def happen(s: State, until: float) -> None:
    """Handle all events that are due at or before `until`."""
    tally, slots = of.tally(s)[0], of.settings(s)[0].slots
    while tally.due and of.event_times(s)[0] <= until:
        slot, now = of.event_slots(s)[0], of.event_times(s)[0]
        call_off(s, slot)
        machine = slot // slots
        kind = slot - machine * slots
        if kind < slots - 2:
            stage_done(s, machine, slot - 2 * machine, now)
        elif kind == slots - 2:
            loaded(s, machine, now)
        else:
            woke(s, machine, now)


@compiled
def is_full(s: State) -> bool:
    """Tell whether a pool may have too few free places for another request."""
    tally = of.tally(s)[0]
    rings = max(of.rings(s).shape[0], of.beliefs(s).shape[0])
    return bool(tally.spare_requests < SPARE or tally.rings + SPARE > rings)


@entry
def empty(s: State, machine: int, numbers: NDArray[np.int64]) -> int:
    """Free all that a machine had, and write the numbers of its requests to a list; return how many numbers there are.

    The records of the machine are set to zero afterwards by the caller.
    """
    m, config = of.machines(s)[machine], of.settings(s)[0]
    for slot in range(machine * config.slots, (machine + 1) * config.slots):
        call_off(s, slot)
    count, lane = 0, m.waiting_lanes - 1
    while lane >= 0:
        count = let_go(s, of.lanes(s)[lane].soonest, numbers, count)
        lane = of.lanes(s)[lane].next_waiting - 1
    first = machine * (config.slots - 2)
    for worker in range(first, first + m.workers):
        batch = of.workers(s)[worker].bottom
        while batch:
            b = of.batches(s)[batch]
            count = let_go(s, b.soonest, numbers, count)
            above = b.above
            b.above = of.tally(s)[0].free_batch
            of.tally(s)[0].free_batch = batch
            of.tally(s)[0].spare_batches += 1
            batch = above
    while m.here:
        evict(s, machine, m.here - 1, 0)
    of.unanswered(s)[machine] = of.work(s)[machine] = 0
    return count


@compiled
def let_go(s: State, first: int, numbers: NDArray[np.int64], count: int) -> int:
    """Free the places of requests, from `first` on in the order of deadlines; return how many numbers are written."""
    request, tally = first, of.tally(s)[0]
    while request:
        r = of.requests(s)[request]
        if r.number < of.settings(s)[0].requests:
            numbers[count] = r.number
            count += 1
        r.next = tally.free_request
        tally.free_request = request
        tally.spare_requests += 1
        request = r.later
    return count
