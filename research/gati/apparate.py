"""Apparate's tuning of exits (Dai et al., SOSP 2024, section 3.2), over the lookups of a model.

It shows nothing beforehand: thresholds begin with nobody leaving and follow the answers. Each request runs to the end
after its early answer has left, so that of the last requests it is known what each exit would have answered. Where the
last 16 would be right less often than is asked for, and every 128 requests, as often as its paper moves exits, all
thresholds are searched anew on a window of the last requests. The search is greedy: each exit is opened a step further
by itself, and that one is kept which saves most time for the answers that it costs, as long as the window keeps the
share of right answers. A step that was kept is doubled, one that breaks the share is halved, down to the least.

So what it saves is time until the answer, not work, and what it keeps is a share of a window that has been, not of the
requests to come. Its exits say how unsure they are from 0 to 1; here that is one minus the selector's probability. The
length of the window and the steps are chosen here.
"""

from random import Random
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import Progress
from latebind.cli.console import Rows as TableRows
from latebind.learned.compose import Costs, Floats, Seen
from latebind.learned.samples import Samples
from research.gati.models import CachedModel
from research.gati.routes import BLOCK, WARM_UP, Classes, Outcome, Plan, Route, Standings, answers_of, costs_of

TRIGGER, EVERY, WINDOW = 16, 128, 512  # requests
FIRST, LEAST = 0.1, 0.01  # steps of a threshold
JUDGED = 500  # consecutive requests, of which the worst are told
NAME = "Apparate's tuning"

_Ran = tuple[NDArray[np.float64], Classes, tuple[str, ...]]


def unsure(scores: Floats) -> Floats:
    """Return one minus the probabilities that these log-odds are."""
    found: Floats = 0.5 * (1.0 - np.tanh(0.5 * scores))
    return found


def answered(errors: Floats, thresholds: Floats) -> NDArray[np.int64]:
    """Return the exit by which each request leaves, `(n,)`: the first with an error under its threshold, or the end.

    `errors` are `(exits, n)`. The end is one more than the last exit.
    """
    under = np.vstack([errors < thresholds[:, None], np.ones((1, errors.shape[1]), np.bool_)])
    found: NDArray[np.int64] = under.argmax(axis=0)
    return found


def worth(errors: Floats, right: NDArray[np.bool_], saved: Floats, thresholds: Floats) -> tuple[float, float]:
    """Return the share of right answers, and the seconds saved by request. `saved` are those of each exit."""
    left = answered(errors, thresholds)
    rights = np.vstack([right, np.ones((1, right.shape[1]), np.bool_)])
    return float(rights[left, np.arange(len(left))].mean()), float(np.append(saved, 0.0)[left].mean())


def tune(errors: Floats, right: NDArray[np.bool_], saved: Floats, share: float) -> Floats:
    """Return the thresholds that a greedy search comes to on these requests, of which `share` must be right."""
    exits = len(saved)
    thresholds, steps = np.zeros(exits), np.full(exits, FIRST)
    now = worth(errors, right, saved, thresholds)
    while True:
        best, found = (False, -1.0), -1
        broken = np.zeros(exits, np.bool_)
        for exit_ in np.flatnonzero(thresholds < 1.0).tolist():
            opened = thresholds.copy()
            opened[exit_] = min(1.0, opened[exit_] + steps[exit_])
            then = worth(errors, right, saved, opened)
            lost, gained = now[0] - then[0], then[1] - now[1]
            broken[exit_] = then[0] < share
            rank = (lost <= 0.0, gained if lost <= 0.0 else gained / lost)
            if not broken[exit_] and gained >= 0.0 and rank > best:
                best, found = rank, exit_
        if found >= 0:
            thresholds[found] = min(1.0, thresholds[found] + steps[found])
            now = worth(errors, right, saved, thresholds)
            steps[found] *= 2.0
        elif not (broken & (steps > LEAST)).any():
            return thresholds
        steps[broken] = np.maximum(LEAST, steps[broken] / 2.0)


def follow(errors: Floats, right: NDArray[np.bool_], saved: Floats, share: float) -> Floats:
    """Return the thresholds that each request meets, `(n, exits)`, as they come one after another."""
    count = errors.shape[1]
    thresholds, met = np.zeros(len(saved)), np.zeros((count, len(saved)))
    for now in range(count):
        met[now] = thresholds
        last, window = slice(max(0, now + 1 - TRIGGER), now + 1), slice(max(0, now + 1 - WINDOW), now + 1)
        broken = worth(errors[:, last], right[:, last], saved, thresholds)[0] < share
        if broken or (now + 1) % EVERY == 0:
            thresholds = tune(errors[:, window], right[:, window], saved, share)
    return met


def seconds_saved(costs: Costs) -> Floats:
    """Return by how much earlier than at the end a request has its answer at each exit."""
    until = np.cumsum(np.array(costs.segments[:-1]) + np.array(costs.lookups))
    found: Floats = until[-1] + costs.segments[-1] - until
    return found


def in_order(base: CachedModel, samples: Samples, plan: Plan, *, on_progress: Progress) -> TableRows:
    """Send rows in their order through a model whose lookups are tuned as they come, and through the model alone.

    Both sides take turns, block by block. Columns beside those of a contest: the least share of right answers in 500
    requests that follow each other, and what the cores compute for one.
    """
    assert isinstance(samples.inputs, tuple)
    on_progress("what every exit says", 0.9)
    route, whole = base.cached(), base.whole()
    said, costs = answers_of(route, samples), costs_of(route, samples)
    seen: Seen = said.against(said.ends)
    errors, saved = unsure(seen.scores), seconds_saved(costs)
    met = follow(errors, seen.right, saved, plan.promise.fidelity)
    on_progress("running in order", 0.95)
    routes = [_with(route, thresholds) for thresholds in met]
    alone, tuned = _race(whole, routes, samples, plan.seed)
    labels = None if samples.labels is None else samples.labels.numpy()
    kept = base.bytes + sum(one.bytes for one in route.exits)
    names = (f"{base.name} alone", NAME)
    outcomes = [
        Outcome(name, size, *ran) for name, size, ran in zip(names, (base.bytes, kept), (alone, tuned), strict=True)
    ]
    rows = Standings(tuple(outcomes), labels, plan.seed).rows()
    work = (float(alone[0].mean()), sum(costs.segments) + sum(costs.lookups))
    for row, outcome, seconds in zip(rows, outcomes, work, strict=True):
        row[f"least of {JUDGED}"] = _least(outcome.classes == outcomes[0].classes)
        row["work ms"] = seconds * 1e3
    return rows


def _with(route: Route, thresholds: Floats) -> Route:
    """Return the route with the scores that belong to these errors; nobody leaves where an error must be under 0."""
    with np.errstate(divide="ignore"):
        scores = np.log1p(-thresholds) - np.log(thresholds)
    return route.with_thresholds(scores)


def _race(whole: Route, routes: list[Route], samples: Samples, seed: int) -> list[_Ran]:
    """Run all rows on both sides, who comes first is drawn for each block."""
    random, count = Random(seed), len(samples)
    for row in range(min(WARM_UP, count)):
        for route in (whole, routes[-1]):
            route(*samples.batch(slice(row, row + 1)))
    seconds, classes = np.empty((2, count)), np.empty((2, count), np.int64)
    left = [[""] * count, [""] * count]
    for start in range(0, count, BLOCK):
        for side in random.sample((0, 1), 2):
            for row in range(start, min(start + BLOCK, count)):
                inputs = samples.batch(slice(row, row + 1))
                route = routes[row] if side else whole
                begun = perf_counter()
                classes[side, row], left[side][row] = route(*inputs)
                seconds[side, row] = perf_counter() - begun
    return [(seconds[side], classes[side], tuple(left[side])) for side in (0, 1)]


def _least(right: NDArray[np.bool_]) -> float:
    """Return the least share of any so many requests that follow each other; of all where there are fewer."""
    size = min(JUDGED, len(right))
    sums = np.cumsum(np.concatenate([[0], right]))
    return float((sums[size:] - sums[:-size]).min() / size)
