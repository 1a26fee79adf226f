"""Chooses which lookups to use and the threshold of each, by the exact objective on held-out samples. Numbers only.

GATI (section 4) scores each cache by itself and lets an integer programme choose (`ilp`). Here the mean latency is
counted by sending every sample through stages and lookups, so a sample that several lookups would hit counts once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

INTERPOLATION_STEP = 0.005  # share of the samples by which a candidate lets more through than the one before it
ROUNDS = 8  # most rounds of coordinate descent; it converges in two to four
STEPS = 120  # prices of a wrong answer that are tried where no sure lookup is quicker than the whole network
HIGHEST_PRICE, LOWEST_PRICE = 1000.0, 2.0  # of a wrong answer, as multiples of what a request costs that runs on
LEAST_SURE_SHARE = 0.01  # share of the network's seconds that a sure lookup is assumed to take at least


@dataclass(frozen=True, slots=True)
class Seen:
    """What the lookups answered on n samples.

    `scores[k, i]` is the score of lookup k on sample i, `right[k, i]` whether its answer equals the base model's.
    `end[i]` says whether the network's own answer equals the base model's; None where the network is the base model.
    """

    scores: Floats
    right: Bools
    end: Bools | None = None

    def take(self, columns: NDArray[np.int64] | Bools) -> "Seen":
        """Return only the samples of these columns, by number or by mask."""
        return Seen(self.scores[:, columns], self.right[:, columns], None if self.end is None else self.end[columns])


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at batch 1 of stages and lookups.

    `segments[k]` is the time of the stages from lookup k - 1 (or the start) to lookup k; the last one runs to the end.
    `lookups[k]` is the latency of lookup k. A miss costs as much, unless lookups run aside: then it costs `beside[k]`,
    by which the lookup slows the network down. Lookups in `sure` answer every request that reaches them. If one of them
    is chosen, the network behind it never runs, and lookups take `before_sure` instead, if that was measured.
    """

    segments: tuple[float, ...]
    lookups: tuple[float, ...]
    beside: tuple[float, ...] | None = None
    sure: tuple[int, ...] = ()
    before_sure: tuple[float, ...] | None = None

    def of(self, choice: "Choice") -> "Costs":
        """Return the costs that hold when exactly these lookups are in use."""
        if self.before_sure is None or not set(choice).intersection(self.sure):
            return self
        return replace(self, lookups=self.before_sure, before_sure=None)

    @property
    def misses(self) -> tuple[float, ...]:
        """Seconds that each lookup adds to a request that it does not answer."""
        return self.lookups if self.beside is None else self.beside

    @property
    def whole(self) -> float:
        """Seconds of the network without any lookup."""
        return sum(self.segments)

    @property
    def least(self) -> float:
        """The fewest seconds in which every request is answered: by the network alone, or by one sure lookup alone."""
        alone = [(k, self.of((k,)).lookups[k]) for k in self.sure]
        return min([self.whole, *(sum(self.segments[: k + 1]) + lookup for k, lookup in alone)])

    def tail(self, choice: "Choice") -> float:
        """Return the latency of a request that misses wherever it can, as a multiple of the network's seconds."""
        end = min((k for k in choice if k in self.sure), default=None)
        costs = self.of(choice)
        if end is None:
            return 1.0 + sum(costs.misses[k] for k in choice) / self.whole
        before = sum(self.segments[: end + 1]) + sum(costs.misses[k] for k in choice if k < end)
        return (before + costs.lookups[end]) / self.whole


@dataclass(frozen=True, slots=True)
class Result:
    """What thresholds do to each of n samples.

    Its seconds, whether the answer is wrong (differs from the base model's), and the lookup at which it left; the
    number of lookups stands for the end of the network.
    """

    seconds: Floats
    wrong: Bools
    left_at: NDArray[np.int64]


def send(thresholds: Floats, seen: Seen, costs: Costs) -> Result:
    """Send every sample through stages and lookups; a lookup with a threshold of infinity is not in use."""
    lookups, n = seen.scores.shape
    costs = costs.of(_chosen(thresholds))
    seconds, wrong = np.full(n, costs.segments[0]), np.zeros(n, dtype=np.bool_)
    left_at, here = np.full(n, lookups), np.ones(n, dtype=np.bool_)
    for k in range(lookups):
        if np.isfinite(thresholds[k]):
            hit = here & (seen.scores[k] >= thresholds[k])
            wrong |= hit & ~seen.right[k]
            left_at[hit] = k
            here = here & ~hit
            seconds[hit] += costs.lookups[k]
            seconds[here] += costs.misses[k]
        seconds[here] += costs.segments[k + 1]
    if seen.end is not None:
        wrong |= here & ~seen.end
    return Result(seconds, wrong, left_at)


Choice = tuple[int, ...]  # the lookups in use, ascending


def _chosen(thresholds: Floats) -> Choice:
    return tuple(np.flatnonzero(np.isfinite(thresholds)).tolist())


def every_choice(_choice: Choice) -> bool:
    """Allow every choice."""
    return True


class Composer:
    """Finds lookups and thresholds that minimise mean seconds + price x (share of wrong answers).

    `allows` says which choices are permitted. The search begins at the best of the permitted `starts`, or, if none of
    them is, without lookups.
    """

    def __init__(
        self,
        seen: Seen,
        costs: Costs,
        *,
        allows: Callable[[Choice], bool] = every_choice,
        starts: Sequence[Choice] | None = None,
    ) -> None:
        self.seen = seen
        self.costs = costs
        self.allows = allows
        every = tuple(range(len(costs.lookups)))
        self._starts = [start for start in ([every] if starts is None else starts) if allows(start)] or [()]
        self._order = np.argsort(-seen.scores, axis=1, kind="stable")
        ordered = np.take_along_axis(seen.scores, self._order, axis=1)
        self._ends = np.ones(ordered.shape, dtype=np.bool_)  # no threshold lies between samples of equal score
        self._ends[:, :-1] = ordered[:, :-1] > ordered[:, 1:]
        self._descents: dict[tuple[float, Choice], tuple[Floats, float]] = {}  # a search comes to most choices again

    def restricted_to(self, lookups: Choice) -> "Composer":
        """Return a composer that chooses among these lookups only."""
        restricted = Composer(self.seen, self.costs, allows=set(lookups).issuperset, starts=[lookups])
        restricted._descents = self._descents
        return restricted

    def choose(self, price: float) -> Floats:
        """Return the thresholds, infinity for lookups that do not pay, by local search over the choices."""
        every = tuple(range(len(self.costs.lookups)))
        best, value = min((self.coordinate_descent(price, start) for start in self._starts), key=lambda found: found[1])
        improved = True
        while improved:
            improved = False
            for choice in _neighbours(_chosen(best), every):
                if not self.allows(choice):
                    continue
                found, at = self.coordinate_descent(price, choice)
                if at < value - 1e-12:
                    best, value, improved = found, at, True
                    break
        return best

    def value(self, thresholds: Floats, price: float) -> float:
        """Return the objective at these thresholds."""
        result = send(thresholds, self.seen, self.costs)
        return float(result.seconds.mean() + price * result.wrong.mean())

    def _objective_without_lookups(self, price: float) -> float:
        """Return the objective without any lookup."""
        wrong = 0.0 if self.seen.end is None else 1.0 - float(self.seen.end.mean())
        return self.costs.whole + price * wrong

    def coordinate_descent(self, price: float, choice: Choice) -> tuple[Floats, float]:
        """Return the best thresholds found for the lookups of `choice` alone, and the objective.

        If the descent drops the sure lookup, the others may cost more than was assumed; then it runs again.
        """
        if (known := self._descents.get((price, choice))) is not None:
            return known
        costs = self.costs.of(choice)
        found, value = self._coordinate_descent(price, choice, costs)
        left = _chosen(found)
        if self.costs.of(left) != costs:
            found, value = self.coordinate_descent(price, left)
        self._descents[price, choice] = found, value
        return found, value

    def _coordinate_descent(self, price: float, choice: Choice, costs: Costs) -> tuple[Floats, float]:
        """Set each threshold to its optimum while the others are held, from the last lookup to the first; repeat."""
        lookups, n = self.seen.scores.shape
        thresholds = np.full(lookups, np.inf)
        best, value = thresholds.copy(), self._objective_without_lookups(price)
        for _ in range(ROUNDS):
            before = thresholds.copy()
            rest = np.full(n, self.costs.segments[-1])  # cost of each sample from here on
            if self.seen.end is not None:
                rest += price * ~self.seen.end
            for k in reversed(range(lookups)):
                if k in choice:
                    thresholds[k] = self._best_threshold(k, thresholds, rest, price, costs)
                    rest = self._with_lookup(k, thresholds[k], rest, price, costs)
                rest = rest + self.costs.segments[k]
            if rest.mean() < value - 1e-15:
                best, value = thresholds.copy(), float(rest.mean())
            if np.array_equal(before, thresholds):
                break
        return best, value

    def _best_threshold(self, k: int, thresholds: Floats, rest: Floats, price: float, costs: Costs) -> float:
        """Return the threshold that saves most over running on; infinity if it saves less than the misses cost."""
        reach = np.ones(len(rest), dtype=np.bool_)
        for j in range(k):
            reach &= self.seen.scores[j] < thresholds[j]
        missed = costs.misses[k]
        saved = rest + missed - costs.lookups[k] - price * ~self.seen.right[k]
        gain = np.where(reach, saved, 0.0)[self._order[k]]
        total = np.where(self._ends[k], np.cumsum(gain), -np.inf)
        place = int(total.argmax())
        if total[place] <= missed * reach.sum():
            return float("inf")
        return float(self.seen.scores[k][self._order[k][place]])

    def _with_lookup(self, k: int, threshold: float, rest: Floats, price: float, costs: Costs) -> Floats:
        if not np.isfinite(threshold):
            return rest
        hit = self.seen.scores[k] >= threshold
        answered = costs.lookups[k] + price * ~self.seen.right[k]
        return np.where(hit, answered, rest + costs.misses[k])


def _neighbours(choice: Choice, every: Choice) -> Iterator[Choice]:
    """Yield the choices with one lookup less, one more, or one exchanged for another."""
    absent = tuple(k for k in every if k not in choice)
    for k in choice:
        yield tuple(j for j in choice if j != k)
    for k in absent:
        yield tuple(sorted((*choice, k)))
    for k in choice:
        for other in absent:
            yield tuple(sorted((*(j for j in choice if j != k), other)))


def threshold_path(composer: Composer, *, fidelity: float, steps: int = STEPS) -> list[Floats]:
    """Return candidate thresholds from the strictest to the laxest, by lowering the price of a wrong answer.

    The lookups that are fastest at `fidelity` are chosen first, and all candidates use only those. If candidates used
    other lookups on the way, one that fails would end the test before the better ones are reached (`calibrate`).

    The best thresholds jump from one price to the next (13 different ones on 1,000 samples of CIFAR-10), and
    calibration can come no closer to its target than the nearest candidate. So the gaps between them, and from no exit
    at all to the first, are filled by interpolation in small steps.
    """
    composer = composer.restricted_to(fastest(composer, fidelity=fidelity, steps=steps)[0])
    found = [np.full(len(composer.costs.lookups), np.inf)]
    for price in _prices(composer.costs, steps):
        thresholds = composer.choose(float(price))
        if not np.array_equal(thresholds, found[-1]):
            found.extend(_interpolate(found[-1], thresholds, composer.seen))
    return found


def fastest(composer: Composer, *, fidelity: float, steps: int = STEPS) -> tuple[Choice, float]:
    """Return the choice that is fastest at `fidelity` on the composer's samples, and its mean seconds."""
    best: Choice = ()
    seconds = composer.costs.whole
    for price in _prices(composer.costs, steps):
        thresholds = composer.choose(float(price))
        result = send(thresholds, composer.seen, composer.costs)
        if result.wrong.mean() <= 1.0 - fidelity and result.seconds.mean() < seconds:
            best, seconds = _chosen(thresholds), float(result.seconds.mean())
    return best, seconds


def _prices(costs: Costs, steps: int) -> Floats:
    """Return falling prices of a wrong answer: at the first hardly a sample leaves early, at the last most do.

    The last is twice the cost of running on. If there is a sure lookup, that cost is a small share of the network's.
    """
    last = LOWEST_PRICE * max(costs.least / costs.whole, LEAST_SURE_SHARE)
    more = np.log(HIGHEST_PRICE / last) / np.log(HIGHEST_PRICE / LOWEST_PRICE)
    return np.geomspace(HIGHEST_PRICE, last, round(steps * more)) * costs.whole


def _interpolate(start: Floats, end: Floats, seen: Seen) -> Iterator[Floats]:
    """Yield thresholds after `start` up to `end`, in even steps of how many samples each lookup lets through."""
    falling = -np.sort(-seen.scores, axis=1)
    above = [(falling >= thresholds[:, None]).sum(axis=1) for thresholds in (start, end)]
    steps = max(1, int(np.abs(above[1] - above[0]).max() / (INTERPOLATION_STEP * seen.scores.shape[1])))
    for share in np.arange(1, steps) / steps:
        let_through = np.rint(above[0] + share * (above[1] - above[0])).astype(np.int64)
        last = np.take_along_axis(falling, np.maximum(let_through - 1, 0)[:, None], axis=1)[:, 0]
        yield np.where(let_through > 0, last, np.inf)
    yield end
