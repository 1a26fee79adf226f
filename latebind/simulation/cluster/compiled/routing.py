"""Chooses the machine for each request: the rules of `simulation/cluster/routing.py`, compiled."""

import numpy as np

from latebind.simulation.cluster.compiled import views as of
from latebind.simulation.cluster.compiled.compile import compiled
from latebind.simulation.cluster.compiled.machine import arrived
from latebind.simulation.cluster.compiled.memory import is_complete
from latebind.simulation.cluster.compiled.views import State
from latebind.simulation.cluster.draws import mixed

RANDOM, ROUND_ROBIN, LEAST_LOADED, TWO_CHOICES, HOME = range(5)
FAILED = 5
TRIAL = 600.0  # seconds until the deadline of a trial, for which no client waits
GAMMA = np.uint64(0x9E3779B97F4A7C15)
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S27, S30, S31, S32, ONE = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32), np.uint64(1)


def start_of(seed: int, salt: int) -> np.uint64:
    """Return where the draws of a seed and a salt begin."""
    words = np.array([seed & 0xFFFF_FFFF_FFFF_FFFF], dtype=np.uint64)
    return np.uint64(mixed(mixed(words) + np.uint64(salt))[0])


@compiled
def word_of(start: np.uint64, number: int) -> np.uint64:
    """Return the bits that are drawn for a request: `draws.drawn`."""
    word = start + (np.uint64(number) + ONE) * GAMMA
    word = (word ^ (word >> S30)) * FIRST
    word = (word ^ (word >> S27)) * SECOND
    return word ^ (word >> S31)


@compiled
def send(s: State, number: int, now: float, start: np.uint64) -> None:
    """Send a request to the machine that the router chooses, and if needed a trial to another home of its model."""
    tally, config, model = of.tally(s)[0], of.settings(s)[0], of.wanted(s)[number]
    due = of.times(s)[number] + of.models(s)[model].allowed
    if not tally.up:
        of.ended(s)[number], of.outcomes(s)[number], of.taken(s)[number] = now, FAILED, -1
        tally.ended += 1
        tally.late += 1
        return
    ought = choose(s, model, word_of(start, number))
    machine = tally.last
    receive(s, machine, number, model, of.leaves(s)[number], now, due)
    if ought >= 0 and needs_trial(s, ought, model):
        of.lanes(s)[ought * config.models + model].tried = 1
        tally.trials += 1
        last = of.models(s)[of.model_at(s, ought, model)].stages - 1
        receive(s, ought, config.requests + tally.trials - 1, model, last, now, now + TRIAL + config.hop)


@compiled
def receive(s: State, machine: int, number: int, model: int, leaves: int, now: float, due: float) -> None:
    """Hand a request to a machine."""
    tally, config = of.tally(s)[0], of.settings(s)[0]
    request = tally.free_request
    r = of.requests(s)[request]
    tally.free_request = r.next
    tally.spare_requests -= 1
    r.number, r.model, r.leaves, r.due, r.arrived, r.delayed = number, model, leaves, due, now, 0.0
    r.deadline = due - config.hop if number < config.requests else now + TRIAL
    of.unanswered(s)[machine] += 1
    of.work(s)[machine] += of.models(s)[of.model_at(s, machine, model)].router_each
    arrived(s, machine, request, now)


@compiled
def needs_trial(s: State, machine: int, model: int) -> bool:
    """Tell whether a home lacks a model that its requests alone will not load, and no trial is under way."""
    config = of.settings(s)[0]
    lane = machine * config.models + model
    costs = of.models(s)[of.model_at(s, machine, model)]
    comes = costs.router_load + costs.router_alone <= costs.room
    return not (comes or of.lanes(s)[lane].tried or is_complete(s, machine, lane))


@compiled
def choose(s: State, model: int, word: np.uint64) -> int:
    """Write the machine for a request to `last`; return another home that lacks the model, -1 for none."""
    tally, config = of.tally(s)[0], of.settings(s)[0]
    if config.router == HOME:
        return home(s, model)
    up = np.uint64(tally.up)
    if config.router == RANDOM:
        chosen = of.up(s)[np.int64(word % up)]
    elif config.router == TWO_CHOICES:
        chosen = two_choices(s, word)
    else:
        chosen = behind_last(s, config.router == LEAST_LOADED)
    tally.last = chosen
    return -1


@compiled
def two_choices(s: State, word: np.uint64) -> int:
    """Return the one of two drawn machines with fewer unanswered requests."""
    up = of.tally(s)[0].up
    if up == 1:
        return int(of.up(s)[0])
    first, second = np.int64(word % np.uint64(up)), np.int64((word >> S32) % np.uint64(up - 1))
    second += second >= first
    one, other = of.up(s)[first], of.up(s)[second]
    return int(other if of.unanswered(s)[other] < of.unanswered(s)[one] else one)


@compiled
def behind_last(s: State, least: bool) -> int:
    """Return the next machine after the one chosen last, or the next one with the fewest unanswered requests."""
    up, last = of.tally(s)[0].up, of.tally(s)[0].last
    start = np.searchsorted(of.up(s)[:up], last, side="right")
    if start == up:
        start = 0
    best = of.up(s)[start]
    if least:
        fewest = of.unanswered(s)[best]
        for place in range(start + 1, start + up):
            machine = of.up(s)[place if place < up else place - up]
            if of.unanswered(s)[machine] < fewest:
                best, fewest = machine, of.unanswered(s)[machine]
    return int(best)


@compiled
def expected(s: State, machine: int, model: int) -> int:
    """Return how many nanoseconds a request would take on a machine, its waiting time included."""
    m = of.machines(s)[machine]
    costs = of.models(s)[of.model_at(s, machine, model)]
    ahead = of.work(s)[machine] // m.workers
    if not is_complete(s, machine, machine * of.settings(s)[0].models + model):
        ahead = max(ahead, costs.router_load)
    return int(ahead + costs.router_alone)


@compiled
def home(s: State, model: int) -> int:
    """Choose among the homes of a model, or if none could answer in time, among machines that have it in memory.

    Returns another home that lacks the model, -1 for none, or where there are no homes, the one that ought to answer.
    """
    tally, config, best, least = of.tally(s)[0], of.settings(s)[0], -1, 0
    if config.placed:
        for place in range(of.home_starts(s)[model], of.home_starts(s)[model + 1]):
            machine = of.homes(s)[place]
            if of.is_up(s)[machine]:
                seconds = expected(s, machine, model)
                if best < 0 or seconds < least:
                    best, least = machine, seconds
    homes = best >= 0
    if not homes:
        best = least_expected(s, model)
        least = expected(s, best, model)
    tally.last = best
    if least > of.models(s)[model].room:
        other = holder(s, model)
        if other >= 0 and expected(s, other, model) <= of.models(s)[model].room:
            tally.last = other
    if homes:
        return other_home(s, model, tally.last)
    return -1 if tally.last == best else int(best)


@compiled
def other_home(s: State, model: int, chosen: int) -> int:
    """Return the first home of a model that lacks it, other than the one chosen; -1 for none."""
    for place in range(of.home_starts(s)[model], of.home_starts(s)[model + 1]):
        machine = of.homes(s)[place]
        if machine != chosen and of.is_up(s)[machine] and needs_trial(s, machine, model):
            return int(machine)
    return -1


@compiled
def least_expected(s: State, model: int) -> int:
    """Return the machine with the least expected time, of all that are up; the first of equal ones."""
    best, least = -1, 0
    for place in range(of.tally(s)[0].up):
        machine = of.up(s)[place]
        if best < 0 or of.work(s)[machine] // of.machines(s)[machine].workers < least:
            seconds = expected(s, machine, model)
            if best < 0 or seconds < least:
                best, least = machine, seconds
    return int(best)


@compiled
def holder(s: State, model: int) -> int:
    """Return the machine that is up, has the model and would answer soonest; -1 if there is none."""
    if not of.models(s)[model].pieces:
        return least_expected(s, model)
    best, least = -1, 0
    lane = of.holders(s)[model] - 1
    while lane >= 0:
        machine = lane // of.settings(s)[0].models
        if of.is_up(s)[machine]:
            seconds = expected(s, machine, model)
            if best < 0 or seconds < least or (seconds == least and machine < best):
                best, least = machine, seconds
        lane = of.lanes(s)[lane].next_holder - 1
    return best
