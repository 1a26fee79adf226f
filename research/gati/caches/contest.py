"""Compares methods: thresholds by folds with one promise for all, then rows one by one in interleaved blocks.

Latency is of calls in this process, closed loop, one thread, batch 1, so without server, queue and HTTP (`bench.exits`
includes those). Each row is answered by thresholds that were chosen and verified on other rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from latebind.bench.rounds import Progress
from latebind.bench.statistics import Interval, mean_interval, ratio_of_means
from latebind.domain.errors import ConfigError
from latebind.learned.compose import Choice, Composer, Costs, Floats, Seen, calibrate, every_choice, threshold_path
from latebind.learned.promise import Promise
from latebind.learned.samples import CHOOSE_SHARE, Samples
from research.gati.caches.route import Classes, Route

BLOCK = 25
WARM_UP = 10

Rows = NDArray[np.int64]
Figures = dict[str, object]  # of one method, by what they are called: names, numbers, `Interval`s, shares by name


@dataclass(frozen=True, slots=True)
class Contender:
    """A method: its route, the bytes of its networks' weights, and how it sets thresholds.

    Those come from rows to choose them by and others to show that they hold.
    """

    name: str
    route: Route
    bytes: int
    thresholds: Callable[[Rows, Rows], Floats]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a method did: seconds of each row, the classes it gave and the exits by which rows left, row by row.

    `bytes` are those of networks and of the exits in use, the most of any fold.
    """

    name: str
    bytes: int
    seconds: NDArray[np.float64]
    classes: Classes
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """How rows are parted: into `folds`, each measured with thresholds from the others. `seed` draws everything."""

    promise: Promise
    folds: int = 5
    seed: int = 0

    def parts(self, rows: int) -> list[tuple[Rows, Rows, Rows]]:
        """Return row numbers to choose thresholds on, to show them on and to measure on, for each fold."""
        if not 2 <= self.folds <= rows:
            raise ConfigError(f"{self.folds} folds of {rows} rows: give 2 or more, and not more than there are rows")
        order = np.random.default_rng(self.seed).permutation(rows)
        pieces = np.array_split(order, self.folds)
        found = []
        for fold, measured in enumerate(pieces):
            others = np.concatenate([*pieces[:fold], *pieces[fold + 1 :]])
            cut = round(CHOOSE_SHARE * len(others))
            if not self.promise.can_show(len(others) - cut):
                raise ConfigError(self.promise.not_shown(len(others) - cut))
            found.append((others[:cut], others[cut:], measured))
        return found


def no_exits(_choose: Rows, _show: Rows) -> Floats:
    """Set no thresholds, for a method without exits."""
    return np.empty(0)


def promised(
    seen: Seen,
    costs: Costs,
    promise: Promise,
    *,
    allows: Callable[[Choice], bool] = every_choice,
    starts: Sequence[Choice] | None = None,
) -> Callable[[Rows, Rows], Floats]:
    """Return how thresholds are set: the search of `learned.compose`, the test of `learned.calibrate`.

    `allows` and `starts` are those of `Composer`. Where nothing holds there are no exits.
    """

    def thresholds(choose: Rows, show: Rows) -> Floats:
        composer = Composer(seen.take(choose), costs, allows=allows, starts=starts)
        candidates = threshold_path(composer, fidelity=promise.fidelity)
        found = calibrate(candidates, [seen.take(show)], costs, promise=promise)
        return np.full(len(costs.lookups), np.inf) if found is None else found.thresholds

    return thresholds


def run(contenders: Sequence[Contender], samples: Samples, plan: Plan, *, tell: Progress) -> list[Outcome]:
    """Measure all contenders on all rows, fold by fold. Those that come to the same route run once, for all of them."""
    assert isinstance(samples.inputs, tuple)
    random = Random(plan.seed)
    found: dict[str, list[tuple[float, int, str]]] = {one.name: [] for one in contenders}
    sizes = {one.name: one.bytes for one in contenders}
    for fold, (choose, show, measured) in enumerate(plan.parts(len(samples))):
        tell(f"calibrating for fold {fold + 1} of {plan.folds}", fold / plan.folds)
        routes = {one.name: one.route.with_thresholds(one.thresholds(choose, show)) for one in contenders}
        inputs = [tuple(t[i : i + 1].contiguous() for t in samples.inputs) for i in measured]
        tell(f"running fold {fold + 1} of {plan.folds}", (fold + 0.3) / plan.folds)
        raced = race(list(dict.fromkeys(routes.values())), inputs, random)
        for name, route in routes.items():
            found[name] += raced[route]
        for one in contenders:
            sizes[one.name] = max(sizes[one.name], one.bytes + sum(exit_.bytes for exit_ in routes[one.name].exits))
    return [_outcome(name, sizes[name], ran) for name, ran in found.items()]


def race(
    routes: Sequence[Route], inputs: Sequence[tuple[Tensor, ...]], random: Random
) -> dict[Route, list[tuple[float, int, str]]]:
    """Return seconds, class and exit of each row for each route; who comes first is drawn for each block of rows."""
    for route in routes:
        for row in inputs[:WARM_UP]:
            route(*row)
    found: dict[Route, list[tuple[float, int, str]]] = {route: [] for route in routes}
    for start in range(0, len(inputs), BLOCK):
        for route in random.sample(routes, len(routes)):
            for row in inputs[start : start + BLOCK]:
                begun = perf_counter()
                answer, left = route(*row)
                found[route].append((perf_counter() - begun, answer, left))
    return found


def _outcome(name: str, size: int, ran: Sequence[tuple[float, int, str]]) -> Outcome:
    seconds, classes, left = zip(*ran, strict=True)
    return Outcome(name, size, np.array(seconds), np.array(classes), left)


@dataclass(frozen=True, slots=True)
class Standings:
    """All outcomes of a contest: the base model, then the method in question, then those beside it.

    `labels` are the true classes in the order of rows. Intervals are of rows: thresholds are taken as they are.
    """

    outcomes: tuple[Outcome, ...]
    labels: Classes | None
    seed: int

    @property
    def base(self) -> Outcome:
        """What fidelity and gains refer to."""
        return self.outcomes[0]

    @property
    def own(self) -> Outcome:
        """The method in question, which others may beat."""
        return self.outcomes[1]

    def gain(self, one: Outcome) -> Interval:
        """Return how many times less the mean latency is than the base model's, paired."""
        return ratio_of_means(self.base.seconds, one.seconds, block=BLOCK, seed=self.seed)

    def against_own(self, one: Outcome) -> Interval:
        """Return the mean latency as a multiple of that of the method in question, paired: under 1 it is beaten."""
        return ratio_of_means(one.seconds, self.own.seconds, block=BLOCK, seed=self.seed)

    def fidelity(self, one: Outcome) -> float:
        """Return the share of answers that are the base model's."""
        return float((one.classes == self.base.classes).mean())

    def accuracy(self, one: Outcome) -> float | None:
        """Return the share of answers that are true."""
        return None if self.labels is None else float((one.classes == self.labels).mean())

    def rows(self) -> list[Figures]:
        """Return one row of a table for each method."""
        return [self._row(one) for one in self.outcomes]

    def _row(self, one: Outcome) -> Figures:
        milliseconds, accuracy = one.seconds * 1e3, self.accuracy(one)
        return {
            "method": one.name,
            "mean ms": mean_interval(milliseconds, block=BLOCK, seed=self.seed),
            "p50 ms": float(np.percentile(milliseconds, 50)),
            "p99 ms": float(np.percentile(milliseconds, 99)),
            "times less": self.gain(one),
            f"mean / {self.own.name}": self.against_own(one),
            "fidelity": self.fidelity(one),
            **({} if accuracy is None else {"accuracy": accuracy}),
            "MB": one.bytes / 1e6,
            "left": {name: one.left.count(name) / len(one.left) for name in sorted(set(one.left))},
        }


def standings(contenders: Sequence[Contender], samples: Samples, plan: Plan, *, tell: Progress) -> Standings:
    """Run the contest; the first contender is the base model, the second the method in question."""
    outcomes = run(contenders, samples, plan, tell=tell)
    order = np.concatenate([measured for _, _, measured in plan.parts(len(samples))])
    labels = None if samples.labels is None else samples.labels.numpy()[order]
    return Standings(tuple(outcomes), labels, plan.seed)
