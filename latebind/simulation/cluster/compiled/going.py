"""Chooses which models to evict: `residency/whole_models.py` and the policies that use it, compiled."""

from math import inf

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.layout import LATE
from latebind.simulation.cluster.compiled.parts import in_parts
from latebind.simulation.cluster.compiled.views import State
from latebind.simulation.cluster.compiled.worth import bring_lowest, bytes_of, importance, piece_seconds, size_of, until

SOME = 8  # among so many models the cheapest set is searched for


@compiled
def victims(s: State, machine: int, need: int, wanted: int, waiting: int, now: float) -> int:
    """Write the lanes to evict for `wanted` to the front of `some`; return their number, 0 if all would be too few.

    `need` bytes are to be freed. For each lane, `stays` says how many bytes remain in memory. Lanes that are kept,
    loading or at work are not offered.
    """
    config, size, count = of.settings(s)[0], 0, 0
    lane = of.machines(s)[machine].here - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if not a.kept and not a.begun and not a.loading and lane != wanted:
            a.stays, a.worth = 0, importance(s, machine, lane, waiting, now)
            of.some(s)[count] = lane
            count += 1
            size += bytes_of(s, machine, lane)
        lane = a.next_here - 1
    if size < need:
        return 0
    if config.eviction != LATE:
        return in_turn(s, machine, need, count)
    if config.whole:
        return least_set(s, machine, need, count, waiting, now)
    return in_parts(s, machine, need, count, waiting, now)


@compiled
def in_turn(s: State, machine: int, need: int, count: int) -> int:
    """Choose the models with the lowest scores until they free enough memory."""
    for place in range(count):
        bring_lowest(s, machine, place, count)
        need -= size_of(s, machine, of.some(s)[place])
        if need <= 0:
            return place + 1
    return 0


@compiled
def gathered(s: State, count: int) -> int:
    """Move the marked models to the front of `some`, and return how many they are."""
    kept = 0
    for place in range(count):
        if of.marks(s)[place]:
            of.some(s)[kept] = of.some(s)[place]
            kept += 1
    return kept


@compiled
def least_set(s: State, machine: int, need: int, count: int, waiting: int, now: float) -> int:
    """Choose the set of at least `need` bytes whose eviction costs least, among `SOME` models, or more if needed."""
    looked, size = 0, 0
    while looked < count and (looked < SOME or size < need):
        bring_lowest(s, machine, looked, count)
        size += size_of(s, machine, of.some(s)[looked])
        looked += 1
    for place in range(looked):
        lane = of.some(s)[place]
        fixed = of.models(s)[of.model_of(s, machine, lane)].fixed
        of.lanes(s)[lane].worth = (fixed + piece_seconds(s, machine, lane)) / until(s, machine, lane, waiting, now)
    by_byte(s, machine, looked)
    taken = one_by_one(s, machine, need)
    if taken <= SOME:
        taken = min(looked, SOME)
        search(s, machine, need, taken)
    return gathered(s, taken)


@compiled
def by_byte(s: State, machine: int, count: int) -> None:
    """Sort the first `count` models by their worth for each byte; equal ones stay in their order."""
    for place in range(1, count):
        lane = of.some(s)[place]
        value = of.lanes(s)[lane].worth / size_of(s, machine, lane)
        before = place - 1
        while before >= 0 and of.lanes(s)[of.some(s)[before]].worth / size_of(s, machine, of.some(s)[before]) > value:
            of.some(s)[before + 1] = of.some(s)[before]
            before -= 1
        of.some(s)[before + 1] = lane


@compiled
def one_by_one(s: State, machine: int, need: int) -> int:
    """Mark models until they free enough memory, and unmark those not needed. Return how many models were looked at."""
    taken = 0
    while need > 0:
        need -= size_of(s, machine, of.some(s)[taken])
        of.marks(s)[taken] = 1
        taken += 1
    for place in range(taken, SOME):
        of.marks(s)[place] = 0
    above, before = inf, -1
    for _ in range(taken):
        best = -1
        for place in range(taken):
            value = of.lanes(s)[of.some(s)[place]].worth
            comes = value < above or (value == above and place > before)
            if comes and (best < 0 or value > of.lanes(s)[of.some(s)[best]].worth):
                best = place
        above, before = of.lanes(s)[of.some(s)[best]].worth, best
        size = size_of(s, machine, of.some(s)[best])
        if size <= -need:
            of.marks(s)[best] = 0
            need += size
    return taken


@compiled
def search(s: State, machine: int, need: int, count: int) -> None:
    """Mark the cheapest set among the first `count` models, if it is cheaper than the one that is marked.

    Sets are tried in the order of a depth-first search that includes each model before it leaves it out, as in
    `residency/whole_models.py`.
    """
    least, best = 0.0, 0
    for place in range(count):
        if of.marks(s)[place]:
            least += of.lanes(s)[of.some(s)[place]].worth
    for these in range((1 << count) - 1, 0, -1):
        left, value, last = need, 0.0, 0
        for place in range(count):
            if these >> (count - 1 - place) & 1:
                last = size_of(s, machine, of.some(s)[place])
                left -= last
                value += of.lanes(s)[of.some(s)[place]].worth
        if left <= 0 < left + last and value < least:
            least, best = value, these
    if best:
        for place in range(count):
            of.marks(s)[place] = best >> (count - 1 - place) & 1
