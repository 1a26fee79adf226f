"""Chooses what to evict where models may stay in part: `Late._pieces` and `residency/piece_groups.py`, compiled.

A model has up to two groups of bytes: the first `grain` bytes (the core), without which a load takes its fixed time as
well, and the others. Each group is offered at its worth, the seconds of loading that a byte of it saves for each second
until the model is asked for next. The cheapest groups are evicted, and of the last one only as much as is needed.
"""

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.layout import PART, WHOLLY
from latebind.simulation.cluster.compiled.views import State
from latebind.simulation.cluster.compiled.worth import bring_lowest, bytes_of, lot, score, until

AT_ONCE = 2  # models whose groups are looked at together


@compiled
def in_parts(s: State, machine: int, need: int, count: int, waiting: int, now: float) -> int:
    """Choose groups that free `need` bytes, of the first `count` models in `some`; return how many models lose any.

    More and more models are looked at, those of the lowest score first, until their groups are enough. 0: all are too
    few. `waiting` requests wait for other models.
    """
    looked, size, offers = 0, 0, 0
    while looked < count:
        for place in range(looked, min(looked + AT_ONCE, count)):
            bring_lowest(s, machine, place, count)
            offers = offer(s, machine, of.some(s)[place], offers, waiting, now)
            size += bytes_of(s, machine, of.some(s)[place])
            looked += 1
        if size >= need:
            taken = enough(s, machine, need, offers)
            if taken:
                return gather(s, taken)
    return 0


@compiled
def offer(s: State, machine: int, lane: int, count: int, waiting: int, now: float) -> int:
    """Add the groups of a model to `count` offers, in order of worth; return how many offers there are now."""
    model = of.models(s)[of.model_of(s, machine, lane)]
    if not model.grain:
        return put(s, lane, count, score(s, machine, lane, waiting, now), False)
    seconds = until(s, machine, lane, waiting, now)
    if model.grain < model.bytes:
        count = put(s, lane, count, lot(s, machine, lane, False) / seconds, False)
    return put(s, lane, count, lot(s, machine, lane, True) / seconds, True)


@compiled
def put(s: State, lane: int, count: int, worth: float, core: bool) -> int:
    """Insert an offer among `count`, which are ordered by worth, then by name; return how many there are now."""
    place = count
    while place and comes_later(s, place - 1, worth, lane):
        copy(s, place - 1, place)
        place -= 1
    o = of.offers(s)[place]
    o.worth, o.lane, o.core = worth, lane, core
    return count + 1


@compiled
def comes_later(s: State, place: int, worth: float, lane: int) -> bool:
    """Tell whether the offer at a place belongs behind a new one of this worth and lane."""
    models, o = of.settings(s)[0].models, of.offers(s)[place]
    if o.worth != worth:
        return bool(o.worth > worth)
    return bool(of.models(s)[o.lane % models].name > of.models(s)[lane % models].name)


@compiled
def copy(s: State, place: int, to: int) -> None:
    """Copy what an offer says to another place; its outcome (`goes`, `stays`) is not copied."""
    one, other = of.offers(s)[place], of.offers(s)[to]
    other.worth, other.lane, other.core = one.worth, one.lane, one.core


@compiled
def enough(s: State, machine: int, need: int, count: int) -> int:
    """Take the cheapest offers until they free `need` bytes; return how many were taken, 0 if all are too few."""
    for place in range(count):
        need = take(s, machine, place, need)
        if need <= 0:
            without_spare(s, machine, place + 1, -need)
            return place + 1
    return 0


@compiled
def take(s: State, machine: int, place: int, need: int) -> int:
    """Take a group, or the grains of it that are needed; return the bytes still needed, negative if some are spare."""
    o = of.offers(s)[place]
    model = of.models(s)[of.model_of(s, machine, o.lane)]
    there = bytes_of(s, machine, o.lane)
    stays = 0 if o.core or not model.grain else model.grain
    o.goes, o.stays = 0, 0
    if there <= stays:
        return need
    need -= min(there, model.grain) if o.core else there - stays
    if need <= 0 and stays:
        more = (stays - need) // model.grain * model.grain - stays
        stays, need = stays + more, need + more
    o.goes, o.stays = PART if stays else WHOLLY, stays
    return int(need)


@compiled
def without_spare(s: State, machine: int, count: int, spare: int) -> None:
    """Let groups stay, the dearest first, where `spare` bytes have room for all of their model.

    Of a model, what would be evicted last stays first.
    """
    for place in range(count):
        of.lanes(s)[of.offers(s)[place].lane].going = 0
    for place in range(count - 1, -1, -1):
        o = of.offers(s)[place]
        a, there = of.lanes(s)[o.lane], bytes_of(s, machine, o.lane)
        if o.goes == WHOLLY and not a.going and there <= spare:
            spare -= there
            o.goes = 0
        elif o.goes:
            a.going = 1


@compiled
def gather(s: State, count: int) -> int:
    """Write the lanes of the first `count` offers that go to `some`, and to each how many bytes of it stay.

    Returns the number of lanes.
    """
    for place in range(count):
        of.lanes(s)[of.offers(s)[place].lane].going = 0
    gone = 0
    for place in range(count):
        o = of.offers(s)[place]
        a = of.lanes(s)[o.lane]
        if not o.goes:
            continue
        if not a.going:
            of.some(s)[gone] = o.lane
            gone += 1
        a.stays = 0 if a.going == WHOLLY else o.stays
        a.going = max(a.going, o.goes)
    return gone
