"""What it is worth that a model is in memory: `residency/late.py`, `iam.py`, `lru.py` and `rates.py`, compiled.

All models of a machine that may be evicted are scored at each decision. The exact policies do so for up to 64 models in
memory; of more than that they score only those whose last known scores were lowest.
"""

from math import exp

import numpy as np

from latebind.residency.late import ALPHA_OF_ALL, JUMP
from latebind.residency.rates import FADED, GAPS, HABIT, KEPT, NEW, PRIOR, SHORTEST
from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.layout import IAM, LATE, LRU
from latebind.simulation.cluster.compiled.views import State

WORTH_MORE, STAYS = 1.3, 4.0  # times the importance of what is evicted, times its load: see `residency/refused.py`
MEANS, LIKELY = np.array(GAPS), np.array(PRIOR)


@compiled
def heard(s: State, machine: int, lane: int, now: float) -> None:
    """Note that a model is asked for: the time, and what it says of the rates of this model and of all together."""
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
    """Weigh the possible mean gaps of a model by how they explain the last silence: `rates.JumpingGaps.observe`."""
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
    """Return the place of a model's ring of request times (IAM) or of its belief (late); the first call takes one."""
    a = of.lanes(s)[lane]
    if not a.ring:
        of.tally(s)[0].rings += 1
        a.ring = of.tally(s)[0].rings
    return int(a.ring)


@compiled
def gap_of(s: State, machine: int, lane: int, now: float) -> float:
    """Return the seconds until a model is expected to be asked for, from the past alone: one over its mean rate."""
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
    """Return the observed span of a window over its number of requests, or a longer silence: `rates.WindowedGaps`."""
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
    """Return the seconds until a model is asked for next, where `waiting` requests for other models come first.

    Each of those counts as the mean gap between all requests. A model that requests wait for counts by its place among
    the models that are waited for.
    """
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
    """Return the seconds that the pieces of a model take to load: as loads have shown, else as the footprint says."""
    a = of.lanes(s)[lane]
    model = of.models(s)[of.model_of(s, machine, lane)]
    return float(a.learned if a.learned > 0.0 else model.seconds)


@compiled
def lacking_seconds(s: State, machine: int, lane: int) -> float:
    """Return the seconds that loading the missing bytes of a model takes, without the fixed part of a load."""
    seconds = piece_seconds(s, machine, lane)
    return float(seconds * (1.0 - of.lanes(s)[lane].part / max(size_of(s, machine, lane), 1)))


@compiled
def score(s: State, machine: int, lane: int, waiting: int, now: float) -> float:
    """Return the worth of a byte of a whole model; with LRU, the number of its last request on this machine.

    The worth is the seconds that a load takes, for each byte and each second until the model is asked for next.
    """
    config, a = of.settings(s)[0], of.lanes(s)[lane]
    if config.eviction == LRU:
        return float(a.tick)
    model = of.models(s)[of.model_of(s, machine, lane)]
    seconds = model.fixed + piece_seconds(s, machine, lane)
    if config.eviction == IAM:
        return float(seconds / (max(model.bytes, 1.0) * gap_of(s, machine, lane, now)))
    return float(seconds / (max(model.bytes, 1.0) * 1.0) / until(s, machine, lane, waiting, now))


@compiled
def importance(s: State, machine: int, lane: int, waiting: int, now: float) -> float:
    """Return the worth of a byte of the group of a model that would be evicted first."""
    a = of.lanes(s)[lane]
    model = of.models(s)[of.model_of(s, machine, lane)]
    if not model.grain:
        return score(s, machine, lane, waiting, now)
    core = model.grain >= model.bytes or not (a.here or a.part > model.grain)
    return float(lot(s, machine, lane, core) / until(s, machine, lane, waiting, now))


@compiled
def lot(s: State, machine: int, lane: int, core: bool) -> float:
    """Return the seconds that loading a byte of a model's core, or of its other bytes, takes: `piece_groups_of`."""
    model = of.models(s)[of.model_of(s, machine, lane)]
    seconds = piece_seconds(s, machine, lane) / (max(model.bytes, 1.0) * 1.0)
    if core:
        seconds += model.fixed / (max(min(model.grain, model.bytes), 1.0) * 1.0)
    return float(seconds)


@compiled
def pays(s: State, machine: int, wanted: int, count: int, waiting: int, now: float) -> bool:
    """Tell if the first `count` of `some` should go for a model that no request waits for: `RefusedModels.pays`."""
    config, loss = of.settings(s)[0], 0.0
    for place in range(count):
        lane = of.some(s)[place]
        fixed = of.models(s)[of.model_of(s, machine, lane)].fixed
        if now - of.lanes(s)[lane].came < STAYS * (fixed + piece_seconds(s, machine, lane)):
            return False
        loss += importance(s, machine, lane, waiting, now) * bytes_of(s, machine, lane)
    if config.eviction == LRU:
        return True
    return bool(score(s, machine, wanted, waiting, now) * size_of(s, machine, wanted) > WORTH_MORE * loss)


@compiled
def size_of(s: State, machine: int, lane: int) -> int:
    """Return the bytes of a model."""
    return int(of.models(s)[of.model_of(s, machine, lane)].bytes)


@compiled
def bytes_of(s: State, machine: int, lane: int) -> int:
    """Return the bytes of a model that are in memory."""
    a = of.lanes(s)[lane]
    return size_of(s, machine, lane) if a.here else int(a.part)


@compiled
def bring_lowest(s: State, machine: int, place: int, count: int) -> None:
    """Swap the lane with the lowest score, of those from `place` on in `some`, to that place; names break ties."""
    models, best = of.settings(s)[0].models, place
    for other in range(place + 1, count):
        one, least = of.lanes(s)[of.some(s)[other]].worth, of.lanes(s)[of.some(s)[best]].worth
        if one < least or (
            one == least
            and of.models(s)[of.some(s)[other] % models].name < of.models(s)[of.some(s)[best] % models].name
        ):
            best = other
    of.some(s)[place], of.some(s)[best] = of.some(s)[best], of.some(s)[place]
