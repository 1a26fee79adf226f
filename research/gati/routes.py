"""Routes through networks with exits on them, and contests between them. Every method, baselines included, is a route.

A model alone is one stage. A cascade is a stage, an exit that looks at its answers, and a stage that takes the input
again. Learned caches are exits between the stages of one network. So all are calibrated and run by the same code.
Thresholds are set by folds with one promise for all, then rows are asked one by one in interleaved blocks: calls in
this process, closed loop, one thread, batch 1, so without server, queue and HTTP. Each row is answered by thresholds
that were chosen and verified on other rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from time import perf_counter

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from latebind.bench.rounds import Progress
from latebind.bench.statistics import Interval, mean_interval, ratio_of_means
from latebind.cli.console import Row
from latebind.cli.console import Rows as TableRows
from latebind.domain.errors import ConfigError
from latebind.learned.activations import batches
from latebind.learned.compose import Choice, Composer, Costs, Floats, Seen, calibrate, every_choice, threshold_path
from latebind.learned.promise import Promise
from latebind.learned.samples import CHOOSE_SHARE, Samples
from latebind.program.backends import StageFunction

RUNS, WARM_RUNS = 40, 5  # of a whole route, for what its pieces cost
BLOCK = 25
WARM_UP = 10
END = "end"

Classes = NDArray[np.int64]
Rows = NDArray[np.int64]  # numbers of rows
Scored = tuple[NDArray[np.float32], NDArray[np.float32]]
Look = Callable[[Tensor], Scored]  # what a stage yields -> answers (B, classes), scores (B,)
Thresholds = Callable[[Rows, Rows], Floats]  # from rows to choose them by, and others to show that they hold


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A part of a network. `again`: it begins another network and takes what the first one took.

    Two are the same where they call the same: what a backend has compiled may not be hashed, nor compared.
    """

    run: StageFunction
    again: bool = False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stage) and (other.run is self.run, other.again) == (True, self.again)

    def __hash__(self) -> int:
        return hash((id(self.run), self.again))


@dataclass(frozen=True, slots=True)
class Exit:
    """Looks at what the stage before it yields; whoever scores `threshold` or more leaves with its answer.

    `bytes` are those of its weights, or of what it keeps.
    """

    name: str
    look: Look
    bytes: int = 0
    threshold: float = float("inf")


@dataclass(frozen=True, slots=True)
class Route:
    """Stages and exits in the order in which a request meets them; the last piece is a stage."""

    pieces: tuple[Stage | Exit, ...]

    @property
    def exits(self) -> tuple[Exit, ...]:
        """All exits, in order; thresholds and costs are counted by it."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Exit))

    def with_thresholds(self, thresholds: Floats) -> "Route":
        """Return the route to run, without exits of infinite threshold and stages whose output is not used."""
        given = iter(thresholds.tolist())
        set_ = [replace(p, threshold=next(given)) if isinstance(p, Exit) else p for p in self.pieces]
        kept: list[Stage | Exit] = []
        looked_at = True  # by an exit, by the next stage or as the last answer
        for piece in reversed(set_):
            if isinstance(piece, Exit):
                if np.isfinite(piece.threshold):
                    kept.append(piece)
                    looked_at = True
            elif looked_at:
                kept.append(piece)
                looked_at = not piece.again
        return Route(tuple(reversed(kept)))

    def __call__(self, *row: Tensor) -> tuple[int, str]:
        """Return the class of one row, each input `(1, ...)`, and the name of the exit that it left by."""
        passed = row
        for piece in self.pieces:
            if isinstance(piece, Stage):
                passed = piece.run(*(row if piece.again else passed))
            else:
                answers, scores = piece.look(passed[0])
                if scores[0] >= piece.threshold:
                    return int(answers[0].argmax()), piece.name
        return int(passed[0][0].argmax()), END


@dataclass(frozen=True, slots=True)
class Answers:
    """What exits and end say of n rows: `scores` and `classes` `(exits, n)`, `ends` `(n,)`."""

    scores: Floats
    classes: Classes
    ends: Classes

    def against(self, base: Classes) -> Seen:
        """Compare the answers with the base model's."""
        return Seen(self.scores, self.classes == base, self.ends == base)


def answers_of(route: Route, samples: Samples) -> Answers:
    """Send all samples through the whole route, past every exit, in batches."""
    exits = len(route.exits)
    scores, classes = np.empty((exits, len(samples))), np.empty((exits, len(samples)), dtype=np.int64)
    ends = np.empty(len(samples), dtype=np.int64)
    for places, batch in batches(samples):
        passed, k = batch, 0
        rows = places if isinstance(places, slice) else places.numpy()
        for piece in route.pieces:
            if isinstance(piece, Stage):
                passed = piece.run(*(batch if piece.again else passed))
            else:
                said, scores[k, rows] = piece.look(passed[0])
                classes[k, rows] = said.argmax(axis=1)
                k += 1
        ends[rows] = passed[0].argmax(dim=1).numpy()
    return Answers(scores, classes, ends)


def costs_of(route: Route, samples: Samples) -> Costs:
    """Return median seconds of each piece at batch 1, in its place: between the others, not in a loop of its own."""
    runs = [_seconds(route, samples.batch(slice(i, i + 1))) for i in np.arange(RUNS + WARM_RUNS) % len(samples)]
    seconds = [median(each) for each in zip(*runs[WARM_RUNS:], strict=True)]
    segments, lookups = [0.0], []
    for piece, took in zip(route.pieces, seconds, strict=True):
        if isinstance(piece, Stage):
            segments[-1] += took
        else:
            lookups.append(took)
            segments.append(0.0)
    return Costs(tuple(segments), tuple(lookups))


def _seconds(route: Route, row: tuple[Tensor, ...]) -> list[float]:
    passed, found = row, []
    for piece in route.pieces:
        start = perf_counter()
        if isinstance(piece, Stage):
            passed = piece.run(*(row if piece.again else passed))
        else:
            piece.look(passed[0])
        found.append(perf_counter() - start)
    return found


def confident(answers: Tensor) -> Scored:
    """Look at the answers of a whole model, for a cascade."""
    said = answers.numpy()
    return said, confidence(said)


def confidence(answers: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the highest share of the softmax of each row of logits `(B, classes)`."""
    shares: NDArray[np.float32] = np.exp(answers - answers.max(axis=1, keepdims=True)).sum(axis=1)
    return 1.0 / shares


@dataclass(frozen=True, slots=True)
class Contender:
    """A method: its route, the bytes of its networks' weights, and how it sets thresholds."""

    name: str
    route: Route
    bytes: int
    thresholds: Thresholds


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
) -> Thresholds:
    """Return how thresholds are set: the search of `learned.compose`, the test of `learned.calibrate`.

    `allows` and `starts` are those of `Composer`. Where nothing holds there are no exits.
    """

    def thresholds(choose: Rows, show: Rows) -> Floats:
        composer = Composer(seen.take(choose), costs, allows=allows, starts=starts)
        candidates = threshold_path(composer, fidelity=promise.fidelity)
        found = calibrate(candidates, [seen.take(show)], costs, promise=promise)
        return np.full(len(costs.lookups), np.inf) if found is None else found.thresholds

    return thresholds


def run(contenders: Sequence[Contender], samples: Samples, plan: Plan, *, on_progress: Progress) -> list[Outcome]:
    """Measure all contenders on all rows, fold by fold. Those that come to the same route run once, for all of them."""
    assert isinstance(samples.inputs, tuple)
    random = Random(plan.seed)
    found: dict[str, list[tuple[float, int, str]]] = {one.name: [] for one in contenders}
    sizes = {one.name: one.bytes for one in contenders}
    for fold, (choose, show, measured) in enumerate(plan.parts(len(samples))):
        on_progress(f"calibrating for fold {fold + 1} of {plan.folds}", fold / plan.folds)
        routes = {one.name: one.route.with_thresholds(one.thresholds(choose, show)) for one in contenders}
        inputs = [samples.batch(slice(i, i + 1)) for i in measured]
        on_progress(f"running fold {fold + 1} of {plan.folds}", (fold + 0.3) / plan.folds)
        raced = race(list(dict.fromkeys(routes.values())), inputs, random)
        for name, route in routes.items():
            found[name] += raced[route]
        for one in contenders:
            sizes[one.name] = max(sizes[one.name], one.bytes + sum(exit_.bytes for exit_ in routes[one.name].exits))
    outcomes = []
    for name, ran in found.items():
        seconds, classes, left = zip(*ran, strict=True)
        outcomes.append(Outcome(name, sizes[name], np.array(seconds), np.array(classes), left))
    return outcomes


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

    def rows(self) -> TableRows:
        """Return one row of a table for each method."""
        return [self._row(one) for one in self.outcomes]

    def _row(self, one: Outcome) -> Row:
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


def standings(contenders: Sequence[Contender], samples: Samples, plan: Plan, *, on_progress: Progress) -> Standings:
    """Run the contest; the first contender is the base model, the second the method in question."""
    outcomes = run(contenders, samples, plan, on_progress=on_progress)
    order = np.concatenate([measured for _, _, measured in plan.parts(len(samples))])
    labels = None if samples.labels is None else samples.labels.numpy()[order]
    return Standings(tuple(outcomes), labels, plan.seed)
