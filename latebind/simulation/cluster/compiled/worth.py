"""What it is worth that a model is in memory, and who goes: `residency/late.py`, `iam.py` and `lru.py`, compiled.

All models of a machine that may go are scored afresh. The exact policies do so for up to 64 in memory, and of more
only for those that were lowest when they were last told.
"""

from math import exp, inf

import numpy as np

from latebind.residency.late import ALPHA_OF_ALL, JUMP
from latebind.residency.rates import FADED, GAPS, HABIT, KEPT, NEW, PRIOR, SHORTEST
from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.layout import IAM, LATE, LRU
from latebind.simulation.cluster.compiled.views import State

WORTH_MORE, STAYS = 1.3, 4.0
MEANS, LIKELY = np.array(GAPS), np.array(PRIOR)
SOME = 8  # models of which the best set is found


@compiled
def heard(s: State, machine: int, lane: int, now: float) -> None:
    """Take note that a request has come."""
    m, a, config = of.machines(s)[machine], of.lanes(s)[lane], of.settings(s)[0]
    m.tick += 1
    a.tick = m.tick
    if not m.heard:
        m.since = now
    if config.eviction == LATE:
        believe(s, machine, lane, now)
        if m.heard:
            m.every_gap += ALPHA_OF_ALL * (now - m.every_last - m.every_gap)
        else:
            m.every_gap = config.window
    elif config.eviction == IAM:
        ring = of.rings(s)[ring_of(s, lane)]
        ring.times[(ring.first + ring.count) % KEPT] = now
        if ring.count < KEPT:
            ring.count += 1
        else:
            ring.first = (ring.first + 1) % KEPT
    a.heard = m.heard = 1
    a.last = m.every_last = now


@compiled
def believe(s: State, machine: int, lane: int, now: float) -> None:
    """Weigh the gaps that a model may have: `rates.JumpingGaps.heard`."""
    window, a = of.settings(s)[0].window, of.lanes(s)[lane]
    belief = of.beliefs(s)[ring_of(s, lane)]
    if not a.heard:
        a.last = of.machines(s)[machine].since
        for place in range(len(MEANS)):
            belief.shares[place] = belief.habit[place] = LIKELY[place]
    silence, lowest, total = now - a.last, 1.0 / (MEANS[0] * window), 0.0
    for place in range(len(MEANS)):
        rate = 1.0 / (MEANS[place] * window)
        belief.shares[place] = belief.shares[place] * rate * exp((lowest - rate) * silence)
        total += belief.shares[place]
    belief.count = min(belief.count + 1, HABIT)
    newest = 1.0 / (belief.count + 1)
    kept, shown, new = 1.0 - newest, newest * (1.0 - NEW) / total, newest * NEW
    stays = (1.0 - JUMP) / total
    for place in range(len(MEANS)):
        weighed = belief.shares[place]
        belief.habit[place] = kept * belief.habit[place] + shown * weighed + new * LIKELY[place]
        belief.shares[place] = stays * weighed + JUMP * belief.habit[place]


@compiled
def ring_of(s: State, lane: int) -> int:
    """Return where the times of a model's requests are kept."""
    a = of.lanes(s)[lane]
    if not a.ring:
        of.tally(s)[0].rings += 1
        a.ring = of.tally(s)[0].rings
    return int(a.ring)


@compiled
def gap_of(s: State, machine: int, lane: int, now: float) -> float:
    """Return the seconds that are expected to pass until a model is asked for next."""
    config, a = of.settings(s)[0], of.lanes(s)[lane]
    if config.eviction == IAM:
        return window_gap(s, machine, lane, now)
    since = now if not of.machines(s)[machine].heard else of.machines(s)[machine].since
    silence, lowest = now - (a.last if a.heard else since), 1.0 / (MEANS[0] * config.window)
    total = mean = 0.0
    for place in range(len(MEANS)):
        rate = 1.0 / (MEANS[place] * config.window)
        fading = (lowest - rate) * silence
        if fading < FADED:
            break
        share = (of.beliefs(s)[a.ring].shares[place] if a.heard else LIKELY[place]) * exp(fading)
        total += share
        mean += share * rate
    return float(total / mean)


@compiled
def window_gap(s: State, machine: int, lane: int, now: float) -> float:
    """Return the span that a window has seen over the number of requests in it."""
    window = of.settings(s)[0].window
    if not of.lanes(s)[lane].ring:
        return float(window)
    ring = of.rings(s)[of.lanes(s)[lane].ring]
    since = now - ring.times[(ring.first + ring.count - 1) % KEPT]
    while ring.count > 1 and now - ring.times[ring.first] > window:
        ring.first = (ring.first + 1) % KEPT
        ring.count -= 1
    full = ring.count == KEPT
    span = now - ring.times[ring.first] if full else min(window, now - of.machines(s)[machine].since)
    return float(max(span / ring.count, since, SHORTEST))


@compiled
def until(s: State, machine: int, lane: int, waiting: int, now: float) -> float:
    """Return the seconds until a model is asked for next, by `waiting` requests that are known to wait."""
    if not waiting:
        return gap_of(s, machine, lane, now)
    m, a = of.machines(s)[machine], of.lanes(s)[lane]
    last, mean = (m.every_last, m.every_gap) if m.heard else (now, of.settings(s)[0].window)
    a_request = max(mean, now - last, SHORTEST)
    if a.count and a.place >= 0:
        return float(a_request * (a.place + 1))
    return float(a_request * waiting + gap_of(s, machine, lane, now))


@compiled
def piece_seconds(s: State, machine: int, lane: int) -> float:
    """Return the seconds that a model's pieces are taken to need."""
    a = of.lanes(s)[lane]
    models = of.settings(s)[0].models
    model = of.models(s)[of.machines(s)[machine].kind * models + lane % models]
    return float(a.learned if a.learned > 0.0 else model.seconds)


@compiled
def score(s: State, machine: int, lane: int, waiting: int, now: float) -> float:
    """Return what a byte of a model is worth, or for the least recently used when it was."""
    config, a = of.settings(s)[0], of.lanes(s)[lane]
    if config.eviction == LRU:
        return float(a.tick)
    model = of.models(s)[of.machines(s)[machine].kind * config.models + lane % config.models]
    seconds = model.fixed + piece_seconds(s, machine, lane)
    if config.eviction == IAM:
        return float(seconds / (max(model.bytes, 1.0) * gap_of(s, machine, lane, now)))
    return float(seconds / (max(model.bytes, 1.0) * 1.0) / until(s, machine, lane, waiting, now))


@compiled
def victims(s: State, machine: int, need: int, wanted: int, waiting: int, now: float) -> int:
    """Write who goes to `some`, from the front on, and return how many; 0 where all would be too few."""
    config, size, count = of.settings(s)[0], 0, 0
    lane = of.machines(s)[machine].here - 1
    while lane >= 0:
        a = of.lanes(s)[lane]
        if not a.kept and not a.begun and not a.loading and lane != wanted:
            a.worth = score(s, machine, lane, waiting, now)
            of.some(s)[count] = lane
            count += 1
            size += size_of(s, machine, lane)
        lane = a.next_here - 1
    if size < need:
        return 0
    if config.eviction != LATE:
        return in_turn(s, machine, need, count)
    if config.whole:
        return least_set(s, machine, need, count, waiting, now)
    return without_spare(s, machine, need, count)


@compiled
def pays(s: State, machine: int, wanted: int, count: int, waiting: int, now: float) -> bool:
    """Tell whether the first `count` of `some` are to go for a model that nobody waits for: `Wishes.pays`."""
    config, loss = of.settings(s)[0], 0.0
    for place in range(count):
        lane = of.some(s)[place]
        fixed = of.models(s)[of.machines(s)[machine].kind * config.models + lane % config.models].fixed
        if now - of.lanes(s)[lane].came < STAYS * (fixed + piece_seconds(s, machine, lane)):
            return False
        loss += score(s, machine, lane, waiting, now) * size_of(s, machine, lane)
    if config.eviction == LRU:
        return True
    return bool(score(s, machine, wanted, waiting, now) * size_of(s, machine, wanted) > WORTH_MORE * loss)


@compiled
def size_of(s: State, machine: int, lane: int) -> int:
    """Return the bytes of a model."""
    models = of.settings(s)[0].models
    return int(of.models(s)[of.machines(s)[machine].kind * models + lane % models].bytes)


@compiled
def bring_lowest(s: State, machine: int, place: int, count: int) -> None:
    """Have the one of the lowest score, of those from `place` on, come to that place; of equal ones the first name."""
    models, best = of.settings(s)[0].models, place
    for other in range(place + 1, count):
        one, least = of.lanes(s)[of.some(s)[other]].worth, of.lanes(s)[of.some(s)[best]].worth
        if one < least or (
            one == least
            and of.models(s)[of.some(s)[other] % models].name < of.models(s)[of.some(s)[best] % models].name
        ):
            best = other
    of.some(s)[place], of.some(s)[best] = of.some(s)[best], of.some(s)[place]


@compiled
def in_turn(s: State, machine: int, need: int, count: int) -> int:
    """Take the lowest, one after another, until they are enough: `whole.first_whole`."""
    for place in range(count):
        bring_lowest(s, machine, place, count)
        need -= size_of(s, machine, of.some(s)[place])
        if need <= 0:
            return place + 1
    return 0


@compiled
def without_spare(s: State, machine: int, need: int, count: int) -> int:
    """Take the lowest in turn; for whom there is room in the end stay, the most precious first: `late._enough`."""
    count = in_turn(s, machine, need, count)
    spare = -need
    for place in range(count):
        spare += size_of(s, machine, of.some(s)[place])
    for place in range(count - 1, -1, -1):
        size = size_of(s, machine, of.some(s)[place])
        of.marks(s)[place] = size > spare
        spare -= 0 if of.marks(s)[place] else size
    return gathered(s, count)


@compiled
def gathered(s: State, count: int) -> int:
    """Leave those who are marked, and return how many they are."""
    kept = 0
    for place in range(count):
        if of.marks(s)[place]:
            of.some(s)[kept] = of.some(s)[place]
            kept += 1
    return kept


@compiled
def least_set(s: State, machine: int, need: int, count: int, waiting: int, now: float) -> int:
    """Take the set of at least `need` bytes whose loss costs least, of `SOME` or of as many as are enough."""
    looked, size = 0, 0
    while looked < count and (looked < SOME or size < need):
        bring_lowest(s, machine, looked, count)
        size += size_of(s, machine, of.some(s)[looked])
        looked += 1
    config = of.settings(s)[0]
    for place in range(looked):
        lane = of.some(s)[place]
        fixed = of.models(s)[of.machines(s)[machine].kind * config.models + lane % config.models].fixed
        of.lanes(s)[lane].worth = (fixed + piece_seconds(s, machine, lane)) / until(s, machine, lane, waiting, now)
    by_byte(s, machine, looked)
    taken = one_by_one(s, machine, need)
    if taken <= SOME:
        taken = min(looked, SOME)
        search(s, machine, need, taken)
    return gathered(s, taken)


@compiled
def by_byte(s: State, machine: int, count: int) -> None:
    """Sort by what a byte is worth; equal ones keep their order."""
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
    """Mark models until they are enough, without those not needed in the end; return how many were looked at."""
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
    """Mark the set that costs least, where any of the first `count` costs less than those marked.

    Sets go in the order of a search that takes each model before it leaves it, as `whole.least_set` has it.
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
