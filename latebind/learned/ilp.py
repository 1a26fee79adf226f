"""GATI's composition: which variant of a learned cache at which boundary, as integer programmes (appendix A.1).

Numbers only. `relaxed` maximises scores (equations 11 to 14), `full` minimises the expected latency that follows from
hit rates (equations 5 to 10); both are solved by HiGHS. `latency_greedy` and `hit_greedy` are the paper's baselines,
`brute_force` is the oracle for small cases. What none of them sees, hits that go together, `compose` counts on samples.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, permutations, product, zip_longest

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


@dataclass(frozen=True, slots=True)
class Variant:
    """One learned cache that was trained and measured behind `stage` (counted from 0).

    `hit_rate` is the share of all samples that it would answer, `accuracy` the share of lookups that give no wrong
    answer (section 3.1), both alone; `seconds` its lookup at batch 1, `bytes` its weights. One that is `sure` answers
    everybody who gets there; `before_sure` are the seconds of a lookup in a choice that has one, if they differ.
    """

    stage: int
    kind: str
    hit_rate: float
    accuracy: float
    seconds: float
    bytes: int
    sure: bool = False
    before_sure: float | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What to choose from: variants, seconds of each stage, and what holds for the choice.

    `accuracy` is the least (A), `memory` the most bytes (M). `aside` says that lookups run beside the network, one at a
    time, so that each must end before the next begins (equation 9); else the network waits for each, and a request that
    is answered as late as can be takes at most `tail` times as long as without them. Nothing comes behind a variant
    that is sure; in line it may follow another at the same boundary.
    """

    variants: tuple[Variant, ...]
    stages: tuple[float, ...]
    accuracy: float = 0.97
    memory: int = 1 << 62
    aside: bool = True
    tail: float = np.inf

    @property
    def ends(self) -> tuple[float, ...]:
        """Seconds from the start to the end of each stage."""
        return tuple(accumulate(self.stages))

    @property
    def whole(self) -> float:
        """Seconds of the whole network."""
        return sum(self.stages)

    def remaining(self, stage: int) -> float:
        """Seconds from behind `stage` to the end."""
        return self.whole - self.ends[stage]

    def gain(self, variant: Variant) -> float:
        """Equation 12: the whole network's time over that of a hit at this variant."""
        return self.whole / (self.ends[variant.stage] + variant.seconds)

    def adds(self, variant: Variant, *, ends_sure: bool = False) -> float:
        """Return what it adds to the longest way, as a share of the network: behind one that is sure nobody runs on."""
        spared = self.remaining(variant.stage) if variant.sure else 0.0
        return (_takes(variant, ends_sure) - spared) / self.whole

    @property
    def added(self) -> float:
        """The most that all lookups may add together: aside nobody waits for them."""
        return np.inf if self.aside else self.tail - 1.0

    def fits(self, chosen: Sequence[Variant]) -> bool:
        """Tell whether the choice keeps equations 8 and 9 and the tail, and has one variant for a boundary.

        It comes in order of stages, at one boundary what is sure last.
        """
        if sum(variant.bytes for variant in chosen) > self.memory:
            return False
        if sum(self.adds(variant, ends_sure=_ends_sure(chosen)) for variant in chosen) > self.added + 1e-9:
            return False
        return all(self.apart(one, other) for one, other in zip_longest(chosen, chosen[1:]))

    def able(self, variant: Variant) -> bool:
        """Tell whether a choice may have it: alone it may miss the tail that it keeps before one that is sure."""
        return variant.bytes <= self.memory and self.apart(variant, None)

    def apart(self, one: Variant, other: Variant | None) -> bool:
        """Tell whether `other`, or the end of the network, comes late enough after `one`."""
        if other is not None and not self._follows(one, other):
            return False
        free = self.remaining(one.stage) - (self.remaining(other.stage) if other is not None else 0.0)
        return not self.aside or one.seconds <= free + 1e-12

    def _follows(self, one: Variant, other: Variant) -> bool:
        if one.sure:
            return False
        return other.stage > one.stage or (other.stage == one.stage and other.sure and not self.aside)


def _ends_sure(chosen: Sequence[Variant]) -> bool:
    return any(variant.sure for variant in chosen)


def _takes(variant: Variant, ends_sure: bool) -> float:
    """Return the seconds of its lookup in a choice that has one that is sure, or not."""
    return variant.before_sure if ends_sure and variant.before_sure is not None else variant.seconds


@dataclass(frozen=True, slots=True)
class Expected:
    """What the paper's model says of a choice: share of correct answers and seconds (equations 7 and 10)."""

    accuracy: float
    seconds: float


def expected(problem: Problem, chosen: Sequence[Variant]) -> Expected:
    """Return accuracy and mean latency by equations 5, 7 and 10.

    Hits are taken as nested: whoever hits early would hit later. So a variant's effective hit rate is its own less that
    of the one before it. Equation 5 as printed takes off the *effective* rate of the one before it alone, which counts
    the hits of the last but one twice: three variants of 0.6 would answer 1.2 of all requests.
    """
    hits, right, seconds = 0.0, 0.0, 0.0
    ends_sure = _ends_sure(chosen)
    for variant in chosen:
        effective = max(0.0, variant.hit_rate - hits)
        hits += effective
        right += effective * variant.accuracy
        seconds += effective * (problem.ends[variant.stage] + _takes(variant, ends_sure))
    return Expected(right + 1.0 - hits, seconds + (1.0 - hits) * problem.whole)


def relaxed(problem: Problem, alpha: float) -> tuple[Variant, ...]:
    """Return the variants with the largest sum of scores, alpha x hit rate + (1 - alpha) x gain (equation 13)."""
    able = [v for v in problem.variants if v.accuracy >= problem.accuracy and problem.able(v)]
    if not able:
        return ()
    rows = _Rows(len(able))
    rows.add({k: v.bytes / 1e6 for k, v in enumerate(able)}, high=problem.memory / 1e6)
    rows.add({k: problem.adds(v) for k, v in enumerate(able)}, high=problem.added)
    for together in _exclusive(problem, able):
        rows.add(dict.fromkeys(together, 1.0), high=1.0)
    scores = np.array([alpha * v.hit_rate + (1.0 - alpha) * problem.gain(v) for v in able])
    found = milp(-scores, integrality=np.ones(len(able)), bounds=Bounds(0, 1), constraints=rows.constraint())
    return _ordered(able[k] for k in range(len(able)) if found.x[k] > 0.5)


def full(problem: Problem) -> tuple[Variant, ...]:
    """Return the choice of least expected latency that keeps accuracy, memory and equation 9.

    Lookups may cost less before one that is sure, so the best choice with such a one and the best without are found
    each by itself.
    """
    ways = [_full(problem, ends_sure=ends_sure) for ends_sure in (False, True)]
    return min(ways, key=lambda chosen: expected(problem, chosen).seconds)


def _full(problem: Problem, *, ends_sure: bool) -> tuple[Variant, ...]:
    """Return the best choice that has one that is sure, or the best that has none.

    The paper's products of choices and effective hit rates become links between a variant and the next one, as each
    link knows its own effective hit rate: a shortest path under two more constraints.
    """
    able = [v for v in problem.variants if problem.able(v) and (ends_sure or not v.sure)]
    links: list[tuple[int | None, int]] = [(None, w) for w in range(len(able))]
    links += [(v, w) for v, w in permutations(range(len(able)), 2) if _may_follow(problem, able[v], able[w])]
    if not links or (ends_sure and not _ends_sure(able)):
        return ()
    hits = np.array([able[w].hit_rate - (able[v].hit_rate if v is not None else 0.0) for v, w in links])
    ends = [able[w] for _, w in links]
    rows = _Rows(len(links))
    rows.add({c: end.bytes / 1e6 for c, end in enumerate(ends)}, high=problem.memory / 1e6)  # eq. 8
    rows.add({c: problem.adds(end, ends_sure=ends_sure) for c, end in enumerate(ends)}, high=problem.added)
    rows.add({c: hits[c] * (end.accuracy - 1.0) for c, end in enumerate(ends)}, low=problem.accuracy - 1.0)  # eq. 7
    rows.add({c: 1.0 for c, (v, _) in enumerate(links) if v is None}, high=1.0)
    ways: list[dict[int, float]] = [{} for _ in able]
    for c, (v, w) in enumerate(links):  # a variant is left at most as often as it is reached (eq. 6)
        ways[w][c] = 1.0
        if v is not None:
            ways[v][c] = -1.0
    for way in ways:
        rows.add(way, low=0.0)
    if ends_sure:
        rows.add({c: 1.0 for c, end in enumerate(ends) if end.sure}, low=1.0)
    saved = np.array([problem.remaining(end.stage) - _takes(end, ends_sure) for end in ends]) / problem.whole
    found = milp(  # eq. 10, less what the network takes without a hit
        -hits * saved,
        integrality=np.ones(len(links)),
        bounds=Bounds(0, 1),
        constraints=rows.constraint(),
        options={"presolve": False},  # it takes ten times longer than the rest: the relaxation is nearly whole already
    )
    if found.x is None:  # no choice with one that is sure keeps its bounds
        return ()
    return _ordered(end for c, end in enumerate(ends) if found.x[c] > 0.5)


def latency_greedy(problem: Problem) -> tuple[Variant, ...]:
    """Return variants taken by falling gain as long as they fit (A.2.1, i)."""
    return _greedy(problem, problem.gain)


def hit_greedy(problem: Problem) -> tuple[Variant, ...]:
    """Return variants taken by falling hit rate as long as they fit (A.2.1, ii)."""
    return _greedy(problem, lambda variant: variant.hit_rate)


def brute_force(problem: Problem) -> tuple[Variant, ...]:
    """Return what `full` should, by trying every choice."""
    best: tuple[Variant, ...] = ()
    least = problem.whole
    for chosen in _choices(problem):
        found = expected(problem, chosen)
        good = problem.fits(chosen) and found.accuracy >= problem.accuracy - 1e-12
        if good and found.seconds < least - 1e-15:
            best, least = chosen, found.seconds
    return best


def _may_follow(problem: Problem, one: Variant, other: Variant) -> bool:
    return problem.apart(one, other) and other.hit_rate > one.hit_rate


def _greedy(problem: Problem, worth: Callable[[Variant], float]) -> tuple[Variant, ...]:
    chosen: tuple[Variant, ...] = ()
    for variant in sorted(problem.variants, key=worth, reverse=True):
        wider = _ordered((*chosen, variant))
        if variant.accuracy >= problem.accuracy and problem.fits(wider):
            chosen = wider
    return chosen


def _choices(problem: Problem) -> Iterator[tuple[Variant, ...]]:
    places = sorted({(variant.stage, variant.sure) for variant in problem.variants})
    at = [[None, *(v for v in problem.variants if (v.stage, v.sure) == place)] for place in places]
    for chosen in product(*at):
        yield tuple(variant for variant in chosen if variant is not None)


def _exclusive(problem: Problem, able: Sequence[Variant]) -> list[list[int]]:
    """Return, for each boundary, the variants of which at most one can be chosen (equation 9).

    Those of the boundary itself and, aside, those whose lookup still runs when the network gets there. Lookups are
    intervals of time, so this forbids just the pairs that overlap, and a linear programme hardly needs to branch. One
    that is sure runs to the end, and comes behind the others of its boundary if it is in line.
    """

    def busy(variant: Variant, stage: int, last: bool) -> bool:
        if (variant.stage, variant.sure and not problem.aside) == (stage, last):
            return True
        start, boundary = problem.ends[variant.stage], problem.ends[stage]
        runs = variant.sure or (problem.aside and start + variant.seconds > boundary + 1e-12)
        return variant.stage < stage and runs

    places = {(variant.stage, variant.sure and not problem.aside) for variant in able}
    return [[k for k, v in enumerate(able) if busy(v, *place)] for place in sorted(places)]


def _ordered(variants: Iterator[Variant] | tuple[Variant, ...]) -> tuple[Variant, ...]:
    return tuple(sorted(variants, key=lambda variant: (variant.stage, variant.sure)))


class _Rows:
    """Linear constraints, collected one by one."""

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._entries: list[tuple[int, int, float]] = []
        self._low: list[float] = []
        self._high: list[float] = []

    def add(self, row: dict[int, float], *, low: float = -np.inf, high: float = np.inf) -> None:
        """Add low <= sum of coefficient x column <= high."""
        self._entries += [(len(self._low), column, value) for column, value in row.items()]
        self._low.append(low)
        self._high.append(high)

    def constraint(self) -> LinearConstraint:
        """Return all as one."""
        rows, columns, values = zip(*self._entries, strict=True)
        matrix = coo_array((values, (rows, columns)), shape=(len(self._low), self._columns)).tocsr()
        return LinearConstraint(matrix, self._low, self._high)
