"""Which boundaries get a lookup and how sure each must be: the exact objective on held-out samples. Numbers only.

GATI (section 4) scores each cache by itself and lets an integer programme choose (`ilp`). Here expected latency is
counted by sending every sample through stages and lookups, so that hits that go together are counted once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

WAY_STEP = 0.005  # of the samples, by which one candidate lets more through than the one before
ROUNDS = 8  # of coordinate descent; it settles in two to four
STEPS = 120  # prices of a wrong answer that are tried, where nobody is answered sooner than by the whole network
DEAREST, CHEAPEST = 1000.0, 2.0  # wrong answer: times what those pay who run on
SOONEST = 0.01  # of the network, that a sure lookup is taken to pass at least


@dataclass(frozen=True, slots=True)
class Seen:
    """What lookups said of n samples: `scores[k, i]` how sure lookup k was, `right[k, i]` whether as the base model.

    `end[i]` tells the same of the end of the network; None where that is the base model itself.
    """

    scores: Floats
    right: Bools
    end: Bools | None = None

    def take(self, columns: NDArray[np.int64] | Bools) -> "Seen":
        """Return some of the samples."""
        return Seen(self.scores[:, columns], self.right[:, columns], None if self.end is None else self.end[columns])


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at batch 1: `segments[k]` from lookup k - 1 (or the start) to lookup k, a last one to the end.

    `lookups[k]` passes until lookup k has answered. Those that it does not answer wait as long, unless lookups run
    aside: then `beside[k]` is what it slows the network down. Those in `sure` answer everybody who gets there; where
    one of them is chosen the network never runs, and lookups pass as `before_sure` says, if that was measured.
    """

    segments: tuple[float, ...]
    lookups: tuple[float, ...]
    beside: tuple[float, ...] | None = None
    sure: tuple[int, ...] = ()
    before_sure: tuple[float, ...] | None = None

    def of(self, choice: "Choice") -> "Costs":
        """Return what these lookups cost together."""
        if self.before_sure is None or not set(choice).intersection(self.sure):
            return self
        return replace(self, lookups=self.before_sure, before_sure=None)

    @property
    def misses(self) -> tuple[float, ...]:
        """Seconds that each lookup adds for those that it does not answer."""
        return self.lookups if self.beside is None else self.beside

    @property
    def whole(self) -> float:
        """Seconds of the network without any lookup."""
        return sum(self.segments)

    @property
    def least(self) -> float:
        """The least seconds in which everybody is answered: by the network, or by a lookup that is sure."""
        alone = [(k, self.of((k,)).lookups[k]) for k in self.sure]
        return min([self.whole, *(sum(self.segments[: k + 1]) + lookup for k, lookup in alone)])

    def tail(self, choice: "Choice") -> float:
        """Return how many times the network's seconds a request takes that is answered as late as can be."""
        end = min((k for k in choice if k in self.sure), default=None)
        costs = self.of(choice)
        if end is None:
            return 1.0 + sum(costs.misses[k] for k in choice) / self.whole
        before = sum(self.segments[: end + 1]) + sum(costs.misses[k] for k in choice if k < end)
        return (before + costs.lookups[end]) / self.whole


@dataclass(frozen=True, slots=True)
class Result:
    """What thresholds do to n samples: seconds, if the answer differs, the lookup left at (their number: the end)."""

    seconds: Floats
    wrong: Bools
    left_at: NDArray[np.int64]


def send(thresholds: Floats, seen: Seen, costs: Costs) -> Result:
    """Send every sample through the network; a threshold of infinity means that the lookup is not there."""
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


Choice = tuple[int, ...]  # which lookups are there, ascending


def _chosen(thresholds: Floats) -> Choice:
    return tuple(np.flatnonzero(np.isfinite(thresholds)).tolist())


def every_choice(_choice: Choice) -> bool:
    """Forbid nothing."""
    return True


class Composer:
    """Finds lookups and thresholds that minimise mean seconds + price x (share of answers that differ).

    `allows` says which lookups may be together. The search begins at the best of those `starts` that are allowed, or at
    none.
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
        self._ends = np.ones(ordered.shape, dtype=np.bool_)  # a threshold cannot part equal scores
        self._ends[:, :-1] = ordered[:, :-1] > ordered[:, 1:]

    def within(self, some: Choice) -> "Composer":
        """Return one that chooses among these lookups only."""
        return Composer(self.seen, self.costs, allows=set(some).issuperset, starts=[some])

    def choose(self, price: float) -> Floats:
        """Return the thresholds; lookups that do not pay have infinity. Local search over which lookups are there."""
        every = tuple(range(len(self.costs.lookups)))
        best, value = min((self.descend(price, start) for start in self._starts), key=lambda found: found[1])
        improved = True
        while improved:
            improved = False
            for there in _neighbours(_chosen(best), every):
                if not self.allows(there):
                    continue
                found, at = self.descend(price, there)
                if at < value - 1e-12:
                    best, value, improved = found, at, True
                    break
        return best

    def value(self, thresholds: Floats, price: float) -> float:
        """Return the objective."""
        result = send(thresholds, self.seen, self.costs)
        return float(result.seconds.mean() + price * result.wrong.mean())

    def _without(self, price: float) -> float:
        """Return the objective without any lookup."""
        wrong = 0.0 if self.seen.end is None else 1.0 - float(self.seen.end.mean())
        return self.costs.whole + price * wrong

    def descend(self, price: float, there: Choice) -> tuple[Floats, float]:
        """Return the best thresholds found for the lookups `there` alone, and the objective.

        Without the one that is sure, lookups may cost more than they were taken to.
        """
        costs = self.costs.of(there)
        found, value = self._descend(price, there, costs)
        left = _chosen(found)
        return (found, value) if self.costs.of(left) == costs else self.descend(price, left)

    def _descend(self, price: float, there: Choice, costs: Costs) -> tuple[Floats, float]:
        """Set one threshold exactly, all others held, from the last lookup to the first, then again."""
        lookups, n = self.seen.scores.shape
        thresholds = np.full(lookups, np.inf)
        best, value = thresholds.copy(), self._without(price)
        for _ in range(ROUNDS):
            before = thresholds.copy()
            rest = np.full(n, self.costs.segments[-1])  # what each sample costs from here to its end
            if self.seen.end is not None:
                rest += price * ~self.seen.end
            for k in reversed(range(lookups)):
                if k in there:
                    thresholds[k] = self._best_threshold(k, thresholds, rest, price, costs)
                    rest = self._with_lookup(k, thresholds[k], rest, price, costs)
                rest = rest + self.costs.segments[k]
            if rest.mean() < value - 1e-15:
                best, value = thresholds.copy(), float(rest.mean())
            if np.array_equal(before, thresholds):
                break
        return best, value

    def _best_threshold(self, k: int, thresholds: Floats, rest: Floats, price: float, costs: Costs) -> float:
        """The threshold that gains most over running on; infinity if all of it is less than the lookup costs."""
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


def _neighbours(there: Choice, every: Choice) -> Iterator[Choice]:
    """Yield the sets with one lookup less, one more, or one put elsewhere."""
    absent = tuple(k for k in every if k not in there)
    for k in there:
        yield tuple(j for j in there if j != k)
    for k in absent:
        yield tuple(sorted((*there, k)))
    for k in there:
        for other in absent:
            yield tuple(sorted((*(j for j in there if j != k), other)))


def path(composer: Composer, *, fidelity: float, steps: int = STEPS) -> list[Floats]:
    """Return thresholds from the strictest to the laxest: a falling price of a wrong answer, repetitions left out.

    First the lookups are
    chosen that are fastest at `fidelity`, and all candidates keep to those: on a way that leads through other lookups,
    one of them that fails would end the test before the better ones (`calibrate`). The best thresholds jump from one
    price to the next (13 different ones on 1,000 samples of CIFAR-10), and calibration cannot come closer to its target
    than to the next candidate; so the way between two of them, and from no exit at all to the first, is walked in small
    steps.
    """
    composer = composer.within(fastest(composer, fidelity=fidelity, steps=steps)[0])
    found = [np.full(len(composer.costs.lookups), np.inf)]
    for price in _prices(composer.costs, steps):
        thresholds = composer.choose(float(price))
        if not np.array_equal(thresholds, found[-1]):
            found.extend(_way(found[-1], thresholds, composer.seen))
    return found


def fastest(composer: Composer, *, fidelity: float, steps: int = STEPS) -> tuple[Choice, float]:
    """Return the lookups that are fastest at `fidelity` on the samples that choose, and the mean seconds there."""
    best: Choice = ()
    seconds = composer.costs.whole
    for price in _prices(composer.costs, steps):
        thresholds = composer.choose(float(price))
        result = send(thresholds, composer.seen, composer.costs)
        if result.wrong.mean() <= 1.0 - fidelity and result.seconds.mean() < seconds:
            best, seconds = _chosen(thresholds), float(result.seconds.mean())
    return best, seconds


def _prices(costs: Costs, steps: int) -> Floats:
    """Return prices of a wrong answer, falling: from one at which hardly a sample leaves to one at which most do.

    The last is twice what those pay who run on, and that may be a sure lookup: a small share of the network.
    """
    last = CHEAPEST * max(costs.least / costs.whole, SOONEST)
    more = np.log(DEAREST / last) / np.log(DEAREST / CHEAPEST)
    return np.geomspace(DEAREST, last, round(steps * more)) * costs.whole


def _way(start: Floats, end: Floats, seen: Seen) -> Iterator[Floats]:
    """Yield thresholds from behind `start` to `end`, by even steps in how many samples each lookup lets through."""
    falling = -np.sort(-seen.scores, axis=1)
    above = [(falling >= thresholds[:, None]).sum(axis=1) for thresholds in (start, end)]
    steps = max(1, int(np.abs(above[1] - above[0]).max() / (WAY_STEP * seen.scores.shape[1])))
    for share in np.arange(1, steps) / steps:
        let_through = np.rint(above[0] + share * (above[1] - above[0])).astype(np.int64)
        last = np.take_along_axis(falling, np.maximum(let_through - 1, 0)[:, None], axis=1)[:, 0]
        yield np.where(let_through > 0, last, np.inf)
    yield end
