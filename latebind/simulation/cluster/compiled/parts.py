"""Who goes in part, for others to have room: `Late._pieces` and `residency/piece_groups.py`, compiled."""

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.layout import PART, WHOLLY
from latebind.simulation.cluster.compiled.views import State
from latebind.simulation.cluster.compiled.worth import bring_lowest, bytes_of, lot, score, until

AT_ONCE = 2  # models whose lots are looked at together


@compiled
def in_parts(s: State, machine: int, need: int, count: int, waiting: int, now: float) -> int:
    """Look at the lots of ever more of the first `count` of `some`, the lowest first, until they are enough."""
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
    """Add the lots of a model to `count` offers, in their order; return how many there are now."""
    model = of.models(s)[of.model_of(s, machine, lane)]
    if not model.grain:
        return put(s, lane, count, score(s, machine, lane, waiting, now), False)
    seconds = until(s, machine, lane, waiting, now)
    if model.grain < model.bytes:
        count = put(s, lane, count, lot(s, machine, lane, False) / seconds, False)
    return put(s, lane, count, lot(s, machine, lane, True) / seconds, True)


@compiled
def put(s: State, lane: int, count: int, worth: float, core: bool) -> int:
    """Put one more among `count` offers: of the lowest worth first, then by name, the first bytes of a model last."""
    place = count
    while place and comes_later(s, place - 1, worth, lane):
        copy(s, place - 1, place)
        place -= 1
    o = of.offers(s)[place]
    o.worth, o.lane, o.core = worth, lane, core
    return count + 1


@compiled
def comes_later(s: State, place: int, worth: float, lane: int) -> bool:
    """Tell whether an offer goes behind a new one."""
    models, o = of.settings(s)[0].models, of.offers(s)[place]
    if o.worth != worth:
        return bool(o.worth > worth)
    return bool(of.models(s)[o.lane % models].name > of.models(s)[lane % models].name)


@compiled
def copy(s: State, place: int, to: int) -> None:
    """Have an offer stand in another place."""
    one, other = of.offers(s)[place], of.offers(s)[to]
    other.worth, other.lane, other.core = one.worth, one.lane, one.core


@compiled
def enough(s: State, machine: int, need: int, count: int) -> int:
    """Take offers from the front on until they free `need` bytes; return how many, 0 where all are too few."""
    for place in range(count):
        need = take(s, machine, place, need)
        if need <= 0:
            without_spare(s, machine, place + 1, -need)
            return place + 1
    return 0


@compiled
def take(s: State, machine: int, place: int, need: int) -> int:
    """Have a lot go, or as much as has to; return what is still needed, below 0 what is spare."""
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
    """Let what is worth most stay where `spare` bytes have room for it; of a model always what would go last."""
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
    """Write to `some` whose lots go, of the first `count`, and what stays of each; return how many they are."""
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
