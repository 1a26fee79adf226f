"""Loads and evicts whole models: `load_planner.py`, `eviction.py` and `gate.py`, compiled.

An evicted model may leave a part in memory. No fleet asks for learned caches to be loaded here, and only one load is
under way at a time.
"""

from math import inf

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.going import victims
from latebind.simulation.cluster.compiled.heap import schedule
from latebind.simulation.cluster.compiled.layout import LRU
from latebind.simulation.cluster.compiled.present import enter_holders, enter_memory, leave_holders, leave_memory
from latebind.simulation.cluster.compiled.queues import move, waited
from latebind.simulation.cluster.compiled.views import State
from latebind.simulation.cluster.compiled.worth import (
    bytes_of,
    heard,
    lacking_seconds,
    pays,
    piece_seconds,
    size_of,
)

NEWEST = 0.3  # weight of the newest measurement in the seconds that a piece takes to load


@compiled
def touch(s: State, machine: int, lane: int) -> None:
    """Note that a request of a model arrived, started, continued or ended."""
    a = of.lanes(s)[lane]
    if not a.touched:
        a.touched = 1
        a.next_touched = of.machines(s)[machine].touched
        of.machines(s)[machine].touched = lane + 1


@compiled
def touch_waiting(s: State, machine: int) -> None:
    """Touch all models that requests wait for."""
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        touch(s, machine, lane)
        lane = of.lanes(s)[lane].next_waiting - 1


@compiled
def is_complete(s: State, machine: int, lane: int) -> bool:
    """Tell whether all of a model is in memory."""
    return bool(of.lanes(s)[lane].here or not of.models(s)[of.model_of(s, machine, lane)].pieces)


@compiled
def load_seconds(s: State, machine: int, lane: int) -> float:
    """Return the seconds until a model is in memory, if it were loaded now and at once."""
    if is_complete(s, machine, lane):
        return 0.0
    seconds = lacking_seconds(s, machine, lane)
    if of.lanes(s)[lane].loading or of.lanes(s)[lane].part:
        return seconds
    return float(seconds + of.models(s)[of.model_of(s, machine, lane)].fixed)


@compiled
def seconds_to(s: State, machine: int, lane: int, now: float) -> float:
    """Return the seconds until a model is in memory if it is loaded next, after the load under way."""
    if is_complete(s, machine, lane):
        return 0.0
    m = of.machines(s)[machine]
    under_way = max(0.0, m.ends - now) if m.loads else 0.0
    if of.lanes(s)[lane].loading:
        return float(under_way)
    return float(under_way + load_seconds(s, machine, lane))


@compiled
def asked(s: State, machine: int, lane: int, now: float) -> bool:
    """Note that a request was refused because its model is not in memory; return whether the model will be loaded."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    heard(s, machine, lane, now)
    settle(s, machine)
    if not (a.count or a.loading or size_of(s, machine, lane) > m.budget):
        wish(s, machine, lane)
        if not m.loads and next_to_load(s, machine, seconds_ahead(s, machine), now) < 0:
            grant(s, machine, now)
    return bool(a.count or a.loading or a.wished)


@compiled
def wish(s: State, machine: int, lane: int) -> None:
    """Remember a model for which requests were refused, after others."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    if a.wished:
        return
    a.wished, a.next_wish = 1, 0
    if m.wishes:
        of.lanes(s)[m.last_wish - 1].next_wish = lane + 1
    else:
        m.wishes = lane + 1
    m.last_wish = lane + 1


@compiled
def forget(s: State, machine: int, lane: int) -> None:
    """Forget that requests were refused because a model was not in memory."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    if not a.wished:
        return
    before = m.wishes
    if before == lane + 1:
        before, m.wishes = 0, a.next_wish
    else:
        while of.lanes(s)[before - 1].next_wish != lane + 1:
            before = of.lanes(s)[before - 1].next_wish
        of.lanes(s)[before - 1].next_wish = a.next_wish
    if m.last_wish == lane + 1:
        m.last_wish = before
    a.wished = 0


@compiled
def grant(s: State, machine: int, now: float) -> None:
    """Load the first wished model that is worth what is evicted for it; forget the wishes before it."""
    m = of.machines(s)[machine]
    while m.wishes:
        lane = m.wishes - 1
        need = lacking(s, machine, lane) - (m.budget - m.used)
        if need <= 0 or make_room_for_nobody(s, machine, lane, need, now):
            aim_at(s, machine, lane)
            begin(s, machine, lane, now)
            return
        forget(s, machine, lane)


@compiled
def make_room_for_nobody(s: State, machine: int, lane: int, need: int, now: float) -> bool:
    """Evict `need` bytes for a model that no request waits for, if that pays."""
    count = chosen(s, machine, need, lane, now)
    if not count or not pays(s, machine, lane, count, waiting_for_others(s, machine, lane), now):
        return False
    for place in range(count):
        evict(s, machine, of.some(s)[place], of.lanes(s)[of.some(s)[place]].stays)
    return True


@compiled
def waiting_for_others(s: State, machine: int, lane: int) -> int:
    """Return how many requests wait for other models, as far as the policy may know (`foresight`)."""
    waiting = of.machines(s)[machine].waiting - of.lanes(s)[lane].count
    return int(waiting * of.settings(s)[0].foresight)


@compiled
def chosen(s: State, machine: int, need: int, lane: int, now: float) -> int:
    """Have the policy choose the lanes to evict for a model, given the waiting requests; return their number."""
    if of.settings(s)[0].foresight:
        waiting, number = 0, 0
        one = of.machines(s)[machine].waiting_lanes - 1
        while one >= 0:
            first = of.requests(s)[of.lanes(s)[one].first].number
            number = first if not waiting else min(number, first)
            waiting += of.lanes(s)[one].count
            one = of.lanes(s)[one].next_waiting - 1
        set_places(s, machine, number)
    return int(victims(s, machine, need, lane, waiting_for_others(s, machine, lane), now))


@compiled
def decide(s: State, machine: int, now: float) -> None:
    """Open and close lanes, and start the evictions and loads that are needed."""
    m = of.machines(s)[machine]
    settle(s, machine)
    for _ in range(2):  # the second time where nobody is left whose end could make room
        if not m.loads and (m.ready < m.waiting or m.wishes or m.drains):
            load(s, machine, now)
        settle(s, machine)
        if m.begun or m.ready:
            break


@compiled
def settle(s: State, machine: int) -> None:
    """Update what is known of models for which requests arrived, started, continued or ended."""
    m = of.machines(s)[machine]
    if m.drains:
        touch_waiting(s, machine)
    lane = m.touched - 1
    m.touched = 0
    while lane >= 0:
        a = of.lanes(s)[lane]
        a.touched = 0
        a.kept = keeps(s, machine, lane)
        opens = is_complete(s, machine, lane) and not (m.drains and not is_guarded(s, machine, lane))
        move(s, machine, lane, opens)
        lane = a.next_touched - 1


@compiled
def keeps(s: State, machine: int, lane: int) -> bool:
    """Tell whether a model must not be evicted, because a request waits for it that has not started."""
    m = of.machines(s)[machine]
    waits = of.lanes(s)[lane].count > 0
    return waits and (not m.drains or m.target == lane + 1 or is_guarded(s, machine, lane))


@compiled
def is_guarded(s: State, machine: int, lane: int) -> bool:
    """Tell whether a request waits that came before the model was loaded."""
    a = of.lanes(s)[lane]
    return bool(a.count and is_complete(s, machine, lane) and of.requests(s)[a.first].number < a.guard)


@compiled
def load(s: State, machine: int, now: float) -> None:
    """Load the model that should be loaded first, if there is room for it or room can be made."""
    m = of.machines(s)[machine]
    ahead = seconds_ahead(s, machine)
    lane = next_to_load(s, machine, ahead, now)
    if lane < 0:
        if m.drains:  # the request that had waited too long has left
            m.drains = 0
            touch_waiting(s, machine)
        grant(s, machine, now)
        return
    aim_at(s, machine, lane)
    need = lacking(s, machine, lane) - (m.budget - m.used)
    if need > 0 and not make_room(s, machine, lane, need, now):
        m.drains = is_overdue(s, lane, ahead, now)
        return
    m.drains = 0
    begin(s, machine, lane, now)


@compiled
def aim_at(s: State, machine: int, lane: int) -> None:
    """Choose a model as the next to be loaded."""
    m = of.machines(s)[machine]
    if m.target and m.target != lane + 1:
        touch(s, machine, m.target - 1)
    m.target = lane + 1


@compiled
def begin(s: State, machine: int, lane: int, now: float) -> None:
    """Start to load a model."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    m.used += lacking(s, machine, lane)
    m.loads = a.loading = 1
    model = of.models(s)[of.model_of(s, machine, lane)]
    fixed = 0.0 if a.part else model.fixed
    m.load_seconds = model.seconds * (1.0 - a.part / max(model.bytes, 1)) + fixed
    m.ends = now + (lacking_seconds(s, machine, lane) + fixed)
    of.tally(s)[0].loads += 1
    of.tally(s)[0].loaded += m.load_seconds
    schedule(s, (machine + 1) * of.settings(s)[0].slots - 2, now + m.load_seconds)
    touch(s, machine, lane)


@compiled
def seconds_ahead(s: State, machine: int) -> float:
    """Return the seconds of all loads that requests wait for."""
    seconds = 0.0
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        seconds += load_seconds(s, machine, lane)
        lane = of.lanes(s)[lane].next_waiting - 1
    return seconds


@compiled
def next_to_load(s: State, machine: int, ahead: float, now: float) -> int:
    """Return the lane to load: that of a request that has waited too long, else the most urgent; -1 for none."""
    config = of.settings(s)[0]
    oldest, urgent, number, seconds, rows = -1, -1, 0, -inf, -inf
    overdue = False
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if not is_complete(s, machine, lane):
            late = is_overdue(s, lane, ahead, now)
            first = of.requests(s)[a.first].number
            if (late or not overdue) and (late > overdue or oldest < 0 or first < number):
                oldest, number = lane, first
            overdue = overdue or late
            each = max(load_seconds(s, machine, lane), 1e-9)
            here = waited(s, lane, now) / each
            if here > seconds or (here == seconds and a.count / each > rows):
                urgent, seconds, rows = lane, here, a.count / each
        lane = a.next_waiting - 1
    return oldest if overdue or config.oldest else urgent


@compiled
def is_overdue(s: State, lane: int, ahead: float, now: float) -> bool:
    """Tell whether a lane must be loaded soon, or its oldest request will wait longer than `patience` seconds."""
    a, patience = of.lanes(s)[lane], of.settings(s)[0].patience
    return bool(a.count and now - of.requests(s)[a.first].arrived >= max(patience - ahead, 0.25 * patience))


@compiled
def make_room(s: State, machine: int, lane: int, need: int, now: float) -> bool:
    """Evict `need` bytes. Models that requests wait for are evicted only if nothing runs."""
    m = of.machines(s)[machine]
    stuck = not (m.begun or m.ready)
    one = m.waiting_lanes - 1
    while one >= 0:
        if stuck or m.drains:
            of.lanes(s)[one].kept = one == lane or (keeps(s, machine, one) and not stuck)
        one = of.lanes(s)[one].next_waiting - 1
    count = chosen(s, machine, need, lane, now)
    for place in range(count):
        evict(s, machine, of.some(s)[place], of.lanes(s)[of.some(s)[place]].stays)
    touch_waiting(s, machine)
    return count > 0


@compiled
def set_places(s: State, machine: int, number: int) -> None:
    """Write to each lane with waiting requests its place: how many came between the oldest of all and its own."""
    lane = of.machines(s)[machine].waiting_lanes - 1
    while lane >= 0:
        of.lanes(s)[lane].place = of.requests(s)[of.lanes(s)[lane].first].number - number
        lane = of.lanes(s)[lane].next_waiting - 1


@compiled
def lacking(s: State, machine: int, lane: int) -> int:
    """Return the bytes of a model that are not in memory."""
    return int(size_of(s, machine, lane) - bytes_of(s, machine, lane))


@compiled
def evict(s: State, machine: int, lane: int, stays: int) -> None:
    """Evict a model, except for this many bytes."""
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    m.used -= bytes_of(s, machine, lane) - stays
    if a.here:
        leave_holders(s, lane)
    a.here, a.part = 0, stays
    if not stays:
        leave_memory(s, machine, lane)
    if of.settings(s)[0].eviction == LRU:
        a.tick = 0
    touch(s, machine, lane)


@compiled
def loaded(s: State, machine: int, now: float) -> None:
    """Note that the model that was being loaded is in memory."""
    m = of.machines(s)[machine]
    lane = m.target - 1
    a = of.lanes(s)[lane]
    known, expected = piece_seconds(s, machine, lane), lacking_seconds(s, machine, lane)
    if expected > 0.0:
        a.learned = known + NEWEST * (m.load_seconds - expected) * known / expected
    if not a.part:
        enter_memory(s, machine, lane)
    enter_holders(s, lane)
    a.here, a.part, a.loading, m.loads, m.target = 1, 0, 0, 0, 0
    a.guard, a.came = m.newest, now
    forget(s, machine, lane)
    if of.settings(s)[0].eviction == LRU and not a.tick:
        m.tick += 1
        a.tick = m.tick
    touch(s, machine, lane)
