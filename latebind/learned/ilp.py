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
    answer (section 3.1), both alone; `seconds` its lookup at batch 1, `bytes` its weights.
    """

    stage: int
    kind: str
    hit_rate: float
    accuracy: float
    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Problem:
    """What to choose from: variants, seconds of each stage, and what holds for the choice.

    `accuracy` is the least (A), `memory` the most bytes (M). `aside` says that lookups run beside the network, one at a
    time, so that each must end before the next begins (equation 9); else the network waits for each.
    """

    variants: tuple[Variant, ...]
    stages: tuple[float, ...]
    accuracy: float = 0.97
    memory: int = 1 << 62
    aside: bool = True

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

    def fits(self, chosen: Sequence[Variant]) -> bool:
        """Tell whether the choice, in order of stages, keeps equations 8 and 9 and has one variant for a boundary."""
        if sum(variant.bytes for variant in chosen) > self.memory:
            return False
        return all(self.apart(one, other) for one, other in zip_longest(chosen, chosen[1:]))

    def apart(self, one: Variant, other: Variant | None) -> bool:
        """Tell whether `other`, or the end of the network, comes late enough after `one`."""
        if other is not None and other.stage <= one.stage:
            return False
        free = self.remaining(one.stage) - (self.remaining(other.stage) if other is not None else 0.0)
        return not self.aside or one.seconds <= free + 1e-12


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
    for variant in chosen:
        effective = max(0.0, variant.hit_rate - hits)
        hits += effective
        right += effective * variant.accuracy
        seconds += effective * (problem.ends[variant.stage] + variant.seconds)
    return Expected(right + 1.0 - hits, seconds + (1.0 - hits) * problem.whole)


def relaxed(problem: Problem, alpha: float) -> tuple[Variant, ...]:
    """Return the variants with the largest sum of scores, alpha x hit rate + (1 - alpha) x gain (equation 13)."""
    able = [v for v in problem.variants if v.accuracy >= problem.accuracy and problem.fits((v,))]
    if not able:
        return ()
    rows = _Rows(len(able))
    rows.add({k: v.bytes / 1e6 for k, v in enumerate(able)}, high=problem.memory / 1e6)
    for together in _exclusive(problem, able):
        rows.add(dict.fromkeys(together, 1.0), high=1.0)
    scores = np.array([alpha * v.hit_rate + (1.0 - alpha) * problem.gain(v) for v in able])
    found = milp(-scores, integrality=np.ones(len(able)), bounds=Bounds(0, 1), constraints=rows.constraint())
    return _ordered(able[k] for k in range(len(able)) if found.x[k] > 0.5)


def full(problem: Problem) -> tuple[Variant, ...]:
    """Return the choice of least expected latency that keeps accuracy, memory and equation 9.

    The paper's products of choices and effective hit rates become links between a variant and the next one, as each
    link knows its own effective hit rate: a shortest path under two more constraints.
    """
    able = [v for v in problem.variants if problem.fits((v,))]
    links: list[tuple[int | None, int]] = [(None, w) for w in range(len(able))]
    links += [(v, w) for v, w in permutations(range(len(able)), 2) if _may_follow(problem, able[v], able[w])]
    if not links:
        return ()
    hits = np.array([able[w].hit_rate - (able[v].hit_rate if v is not None else 0.0) for v, w in links])
    ends = [able[w] for _, w in links]
    rows = _Rows(len(links))
    rows.add({c: end.bytes / 1e6 for c, end in enumerate(ends)}, high=problem.memory / 1e6)  # eq. 8
    rows.add({c: hits[c] * (end.accuracy - 1.0) for c, end in enumerate(ends)}, low=problem.accuracy - 1.0)  # eq. 7
    rows.add({c: 1.0 for c, (v, _) in enumerate(links) if v is None}, high=1.0)
    ways: list[dict[int, float]] = [{} for _ in able]
    for c, (v, w) in enumerate(links):  # a variant is left at most as often as it is reached (eq. 6)
        ways[w][c] = 1.0
        if v is not None:
            ways[v][c] = -1.0
    for way in ways:
        rows.add(way, low=0.0)
    saved = np.array([problem.whole - problem.ends[end.stage] - end.seconds for end in ends]) / problem.whole
    found = milp(  # eq. 10, less what the network takes without a hit
        -hits * saved,
        integrality=np.ones(len(links)),
        bounds=Bounds(0, 1),
        constraints=rows.constraint(),
        options={"presolve": False},  # it takes ten times longer than the rest: the relaxation is nearly whole already
    )
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
    stages = sorted({variant.stage for variant in problem.variants})
    at = [[None, *(v for v in problem.variants if v.stage == stage)] for stage in stages]
    for chosen in product(*at):
        yield tuple(variant for variant in chosen if variant is not None)


def _exclusive(problem: Problem, able: Sequence[Variant]) -> list[list[int]]:
    """Return, for each boundary, the variants of which at most one can be chosen (equation 9).

    Those of the boundary itself and, aside, those whose lookup still runs when the network gets there. Lookups are
    intervals of time, so this forbids just the pairs that overlap, and a linear programme hardly needs to branch.
    """

    def busy(variant: Variant, stage: int) -> bool:
        start, boundary = problem.ends[variant.stage], problem.ends[stage]
        return problem.aside and variant.stage < stage and start + variant.seconds > boundary + 1e-12

    stages = sorted({variant.stage for variant in able})
    return [[k for k, v in enumerate(able) if v.stage == stage or busy(v, stage)] for stage in stages]


def _ordered(variants: Iterator[Variant] | tuple[Variant, ...]) -> tuple[Variant, ...]:
    return tuple(sorted(variants, key=lambda variant: variant.stage))


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
