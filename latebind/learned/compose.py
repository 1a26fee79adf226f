"""Composition: chooses which trained lookups to use and the threshold of each. Numbers only.

GATI (section 4) scores each cache by itself and lets an integer program choose, which knows only figures of single
lookups (`research/gati/composition.py`). Here a search computes the mean latency by sending every sample through stages
and lookups: a sample that several lookups would hit counts once. It begins at each single lookup. (On 24 random
problems of 8 to 16 lookups it reached 0.995 of the latency that it reached from the programs' choices, and never more.)

What was chosen is calibrated on samples that did not choose it, by Learn then Test (Angelopoulos et al. 2021, section
3.2, fixed sequence testing): candidates are tested from the strictest to the laxest, each by an exact test, until the
first one fails. If the promise is about the share of wrong answers among all possible ones, the chance that any
accepted candidate is worse than the target is at most 1 - confidence.

The same bound holds for the next N answers, of which at most m may be wrong, although it is not known beforehand which
candidates will be unlucky in those N. Suppose a candidate passes if at most k of n samples are wrong. For each share p,
the first candidate worse than p is fixed. So a candidate worse than p is accepted at most as often as k or fewer of n
uniform numbers are below p. More than m of the N answers are wrong as often as the accepted candidate's share is above
the (m + 1)-th smallest of N other uniform numbers. Substitute that for p: the chance is then that it is smaller than
the (k + 1)-th smallest of n, which is what the test of a single candidate bounds.

Only the search's choice is ever used: taking the best of several calibrated choices would void the promise.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from latebind.domain.costs import Grid
from latebind.learned.promise import Promise

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

INTERPOLATION_STEP = 0.005  # share of the samples by which a candidate lets more through than the one before it
ROUNDS = 8  # most rounds of coordinate descent; it converges in two to four
STEPS = 120  # prices of a wrong answer that are tried if no sure lookup is faster than the whole network
HIGHEST_PRICE, LOWEST_PRICE = 1000.0, 2.0  # of a wrong answer, as multiples of what running on costs a request
AT_ONE_BOUNDARY = 2  # lookups at most, a fast one before an able one; GATI has one
LEAST_SURE_SHARE = 0.01  # share of the network's seconds that a sure lookup is assumed to take at least


@dataclass(frozen=True, slots=True)
class Seen:
    """What the lookups answered on n samples.

    `scores[k, i]` is the score of lookup k on sample i, `right[k, i]` whether its answer equals the base model's.
    `end[i]` says whether the network's own answer equals the base model's; None if the network is the base model.
    `lengths[i]` is the length of sample i; None if all are alike.
    """

    scores: Floats
    right: Bools
    end: Bools | None = None
    lengths: NDArray[np.int64] | None = None

    def take(self, columns: NDArray[np.int64] | Bools) -> "Seen":
        """Return only the samples of these columns, by number or by mask."""
        end = None if self.end is None else self.end[columns]
        lengths = None if self.lengths is None else self.lengths[columns]
        return Seen(self.scores[:, columns], self.right[:, columns], end, lengths)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds at batch 1 of stages and lookups.

    `segments[k]` is the time of the stages from lookup k - 1 (or the start) to lookup k; the last one runs to the end.
    `lookups[k]` is the latency of lookup k. A miss costs as much, unless lookups run aside: then it costs `beside[k]`,
    by which the lookup slows the network down. Lookups in `sure` answer every request that reaches them. (Before a sure
    one the network never runs and leaves the core's caches alone, so a lookup takes less: 0.38 ms instead of 0.53. A
    separate cost for that case made ResNet-56 1 % faster on a stream, which was not worth its branches.)

    If samples differ in length, `segments` are means, and `of_length[k]` has the seconds of segment k at `lengths`
    (ascending): a row that leaves early saves the time of its own length.
    """

    segments: tuple[float, ...]
    lookups: tuple[float, ...]
    beside: tuple[float, ...] | None = None
    sure: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    of_length: tuple[tuple[float, ...], ...] = ()

    @classmethod
    def of(
        cls,
        stages: Sequence[float],
        lookups: Sequence[tuple[int, float, float]],
        *,
        aside: bool,
        sure: tuple[int, ...] = (),
        grids: Sequence[Grid] = (),
    ) -> "Costs":
        """Return the costs of a network with `lookups`, by the seconds of its `stages`, and by length with `grids`.

        Each of `lookups` has the stage it comes after, its latency, and by how much it slows the network down aside.
        """
        ends = [stage + 1 for stage, _, _ in lookups]
        spans = [slice(a, b) for a, b in zip([0, *ends], [*ends, len(stages)], strict=True)]
        segments = tuple(sum(stages[span]) for span in spans)
        beside = tuple(slower for _, _, slower in lookups) if aside else None
        lengths = tuple(sorted({length for grid in grids for length in grid.lengths}))
        by_length = [tuple(sum(grid.at(1, length) for grid in grids[span]) for length in lengths) for span in spans]
        latencies = tuple(seconds for _, seconds, _ in lookups)
        return cls(segments, latencies, beside, sure, lengths, tuple(by_length) if lengths else ())

    def of_each(self, seen: Seen) -> Sequence[float | Floats]:
        """Return the seconds of each segment: one number, or, if samples differ in length, one for each, `(n,)`."""
        if seen.lengths is None or not self.lengths:
            return self.segments
        return [np.interp(seen.lengths, self.lengths, seconds) for seconds in self.of_length]

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
        return min([self.whole, *(sum(self.segments[: k + 1]) + self.lookups[k] for k in self.sure)])

    def tail(self, choice: "Choice") -> float:
        """Return the latency of a request that misses wherever it can, as a multiple of the network's seconds."""
        end = min((k for k in choice if k in self.sure), default=None)
        if end is None:
            return 1.0 + sum(self.misses[k] for k in choice) / self.whole
        before = sum(self.segments[: end + 1]) + sum(self.misses[k] for k in choice if k < end)
        return (before + self.lookups[end]) / self.whole


def over_lengths(grids: Sequence[Grid], lengths: NDArray[np.int64]) -> list[float]:
    """Return the mean seconds of each stage at batch 1 over rows of these lengths."""
    there, counts = np.unique(lengths, return_counts=True)
    return [float(np.average([grid.at(1, int(length)) for length in there], weights=counts)) for grid in grids]


@dataclass(frozen=True, slots=True)
class Result:
    """What thresholds do to each of n samples.

    For each its seconds, whether the answer is wrong (differs from the base model's), and the lookup at which it left;
    the number of lookups stands for the end of the network.
    """

    seconds: Floats
    wrong: Bools
    left_at: NDArray[np.int64]


def send(thresholds: Floats, seen: Seen, costs: Costs) -> Result:
    """Send every sample through stages and lookups; a lookup with a threshold of infinity is not in use."""
    lookups, n = seen.scores.shape
    segments = costs.of_each(seen)
    seconds, wrong = np.full(n, segments[0]), np.zeros(n, dtype=np.bool_)
    left_at, here = np.full(n, lookups), np.ones(n, dtype=np.bool_)
    for k in range(lookups):
        if np.isfinite(thresholds[k]):
            hit = here & (seen.scores[k] >= thresholds[k])
            wrong |= hit & ~seen.right[k]
            left_at[hit] = k
            here = here & ~hit
            seconds[hit] += costs.lookups[k]
            seconds[here] += costs.misses[k]
        seconds += here * segments[k + 1]
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
    """Finds lookups and thresholds that minimize mean seconds + price x (share of wrong answers).

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
        self._segments = costs.of_each(seen)
        every = tuple(range(len(costs.lookups)))
        self._starts = [start for start in ([every] if starts is None else starts) if allows(start)] or [()]
        self._order = np.argsort(-seen.scores, axis=1, kind="stable")
        ordered = np.take_along_axis(seen.scores, self._order, axis=1)
        self._ends = np.ones(ordered.shape, dtype=np.bool_)  # no threshold lies between samples of equal score
        self._ends[:, :-1] = ordered[:, :-1] > ordered[:, 1:]
        self._descents: dict[
            tuple[float, Choice], tuple[Floats, float]
        ] = {}  # a search reaches most choices repeatedly

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
            for choice in _neighbors(_chosen(best), every):
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

    def coordinate_descent(self, price: float, choice: Choice) -> tuple[Floats, float]:
        """Return the best thresholds found for the lookups of `choice` alone, and the objective.

        Each threshold is set to its optimum while the others are held, from the last lookup to the first, repeatedly.
        """
        if (known := self._descents.get((price, choice))) is not None:
            return known
        lookups, n = self.seen.scores.shape
        costs = self.costs
        thresholds = np.full(lookups, np.inf)
        best, value = thresholds.copy(), self.value(thresholds, price)
        for _ in range(ROUNDS):
            before = thresholds.copy()
            rest = np.full(n, self._segments[-1])  # cost of each sample from here on
            if self.seen.end is not None:
                rest += price * ~self.seen.end
            for k in reversed(range(lookups)):
                if k in choice:
                    thresholds[k] = self._best_threshold(k, thresholds, rest, price)
                    if np.isfinite(thresholds[k]):
                        answered = costs.lookups[k] + price * ~self.seen.right[k]
                        rest = np.where(self.seen.scores[k] >= thresholds[k], answered, rest + costs.misses[k])
                rest = rest + self._segments[k]
            if rest.mean() < value - 1e-15:
                best, value = thresholds.copy(), float(rest.mean())
            if np.array_equal(before, thresholds):
                break
        self._descents[price, choice] = best, value
        return best, value

    def _best_threshold(self, k: int, thresholds: Floats, rest: Floats, price: float) -> float:
        """Return the threshold that saves most over running on; infinity if it saves less than the misses cost."""
        reach = np.ones(len(rest), dtype=np.bool_)
        for j in range(k):
            reach &= self.seen.scores[j] < thresholds[j]
        missed = self.costs.misses[k]
        saved = rest + missed - self.costs.lookups[k] - price * ~self.seen.right[k]
        gain = np.where(reach, saved, 0.0)[self._order[k]]
        total = np.where(self._ends[k], np.cumsum(gain), -np.inf)
        place = int(total.argmax())
        if total[place] <= missed * reach.sum():
            return float("inf")
        return float(self.seen.scores[k][self._order[k][place]])


def _neighbors(choice: Choice, every: Choice) -> Iterator[Choice]:
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
    calibration gets no closer to its target than the nearest candidate. So the gaps between them, and from no exit at
    all to the first, are filled by interpolation in small steps.
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
    """Return falling prices of a wrong answer: at the first hardly any samples leave early, at the last most do.

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


@dataclass(frozen=True, slots=True)
class Calibrated:
    """Thresholds and what held-out samples show about them.

    `fidelity` is the share of answers equal to the base model's and `lower` its lower bound, both in the worst world.
    `seconds` is the mean latency.
    """

    thresholds: Floats
    fidelity: float
    lower: float
    seconds: float


def calibrate(
    candidates: Sequence[Floats], worlds: Sequence[Seen], costs: Costs, *, promise: Promise
) -> Calibrated | None:
    """Return the fastest of the candidates that keep the promise in every world; None if not even the first does.

    `candidates` are ordered from the strictest to the laxest and were chosen on other samples than `worlds`.
    """
    accepted = []
    for thresholds in candidates:
        found = evaluate(thresholds, worlds, costs, promise=promise)
        if found.lower < promise.fidelity:
            break
        accepted.append(found)
    return min(accepted, key=lambda found: found.seconds, default=None)


def evaluate(thresholds: Floats, worlds: Sequence[Seen], costs: Costs, *, promise: Promise) -> Calibrated:
    """Return what these samples show about the thresholds.

    The bound is the lowest over all worlds. Since every world has to pass, it needs no correction for their number.
    """
    results = [send(thresholds, seen, costs) for seen in worlds]
    wrong = [(int(result.wrong.sum()), len(result.wrong)) for result in results]
    fidelity = min(1.0 - bad / n for bad, n in wrong)
    lower = min(promise.lower_bound(bad, n) for bad, n in wrong)
    seconds = float(np.concatenate([result.seconds for result in results]).mean())
    return Calibrated(thresholds, fidelity, lower, seconds)


@dataclass(frozen=True, slots=True)
class Variant:
    """One learned cache that was trained and measured after `stage` (counted from 0).

    By itself it would answer `hit_rate` of all samples, and `accuracy` is the share of lookups that give no wrong
    answer (section 3.1). `seconds` is its latency at batch 1, `bytes` the size of its weights. A variant that is `sure`
    answers every request that reaches it.
    """

    stage: int
    kind: str
    hit_rate: float
    accuracy: float
    seconds: float
    bytes: int
    sure: bool = False


@dataclass(frozen=True, slots=True)
class Composition:
    """The problem of choosing among `variants`, which are in order of stages, and at one boundary the fastest first.

    `stages` are the seconds of each stage at batch 1.
    """

    variants: tuple[Variant, ...]
    costs: Costs
    stages: tuple[float, ...]
    promise: Promise

    def allows(self, choice: Choice) -> bool:
        """Return whether these lookups may be used together: within memory and tail, and few at any one boundary.

        In line that is `AT_ONE_BOUNDARY`, and a sure lookup in addition, since no request runs on after it. Aside,
        lookups run one at a time: each must have answered before the next one starts (GATI, equation 9).
        """
        chosen = [self.variants[k] for k in choice]
        if self.costs.beside is None:
            behind = Counter(self.variants[k].stage for k in choice if k not in self.costs.sure)
            together = max(behind.values(), default=0) <= AT_ONE_BOUNDARY
        else:
            starts = [sum(self.costs.segments[: k + 1]) for k in choice] + [self.costs.whole]
            ends = [start + self.costs.lookups[k] for start, k in zip(starts, choice, strict=False)]
            in_time = all(end <= start + 1e-12 for end, start in zip(ends, starts[1:], strict=True))
            together = in_time and not set(choice[:-1]) & set(self.costs.sure)
        small = sum(variant.bytes for variant in chosen) <= self.promise.cache_bytes
        return together and small and self.costs.tail(choice) <= self.promise.tail

    def expected(self, seen: Seen) -> float:
        """Return the mean seconds of the best choice at the target fidelity on `seen`, without calibration."""
        return fastest(self._composer(seen), fidelity=self.promise.fidelity)[1]

    def choose(self, seen: Seen, worlds: Sequence[Seen]) -> Calibrated | None:
        """Return the thresholds to use, chosen on the samples `seen`, calibrated on those of `worlds`."""
        candidates = threshold_path(self._composer(seen), fidelity=self.promise.fidelity)
        return calibrate(candidates, worlds, self.costs, promise=self.promise)

    def curve(
        self, thresholds: Floats, seen: Seen, worlds: Sequence[Seen], fidelities: Sequence[float]
    ) -> list[tuple[float, Calibrated]]:
        """Return each of `fidelities` that can be shown, and thresholds that keep it, for the lookups in `thresholds`.

        All of them hold together with the confidence of the promise, each in its own test (Bonferroni), so the choice
        of a request's level may depend on anything but its row. What `whole` returns holds with them.
        """
        composer = self._composer(seen).restricted_to(_chosen(thresholds))
        found = []
        for fidelity in fidelities:
            promise = replace(self._of_many(worlds, len(fidelities)), fidelity=fidelity)
            one = calibrate(threshold_path(composer, fidelity=fidelity), worlds, self.costs, promise=promise)
            if one is not None and np.isfinite(one.thresholds).any():
                found.append((fidelity, one))
        return found

    def alone(self, worlds: Sequence[Seen]) -> Calibrated:
        """Return what the samples show about the network without any lookup."""
        return evaluate(np.full(len(self.variants), np.inf), worlds, self.costs, promise=self.promise)

    def whole(self, worlds: Sequence[Seen], levels: int) -> float:
        """Return the fidelity of the network without any lookup, which holds together with `levels` levels."""
        if all(seen.end is None for seen in worlds):
            return 1.0
        return replace(self, promise=self._of_many(worlds, levels)).alone(worlds).lower

    def _of_many(self, worlds: Sequence[Seen], levels: int) -> Promise:
        """Return the promise for each of `levels` levels, and for the network itself if that may be wrong."""
        return self.promise.of_each(levels + any(seen.end is not None for seen in worlds))

    def _composer(self, seen: Seen) -> Composer:
        return Composer(seen, self.costs, allows=self.allows, starts=[(k,) for k in range(len(self.variants))])


def hits_alone(scores: Floats, right: Bools, most: float) -> tuple[float, float]:
    """Return hit rate and share of wrong answers of one lookup, at its laxest threshold with at most `most` wrong."""
    order = np.argsort(-scores, kind="stable")
    ordered = scores[order]
    wrong = np.cumsum(~right[order]) / len(scores)
    last = np.append(ordered[:-1] > ordered[1:], True)  # no threshold lies between samples of equal score
    good = np.flatnonzero(last & (wrong <= most))
    return (float(good[-1] + 1) / len(scores), float(wrong[good[-1]])) if len(good) else (0.0, 0.0)
