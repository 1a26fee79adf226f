"""GATI's composition as integer programmes (appendix A.1): which variant of a learned cache at which boundary.

Numbers only. `relaxed` maximises scores (equations 11 to 14), `full` minimises the expected latency that follows from
hit rates (equations 5 to 10); both are solved by HiGHS. `latency_greedy` and `hit_greedy` are the paper's baselines.
None of them knows which hits of two lookups are on the same samples; `compose` counts that.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, permutations, zip_longest

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array


@dataclass(frozen=True, slots=True)
class Variant:
    """One learned cache that was trained and measured behind `stage` (counted from 0).

    By itself it would answer `hit_rate` of all samples, and `accuracy` is the share of lookups that give no wrong
    answer (section 3.1). `seconds` is its latency at batch 1, `bytes` the size of its weights. A variant that is `sure`
    answers every request that reaches it. `before_sure` is the latency in a choice that has a sure variant; None: it
    does not differ.
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
    """Variants to choose from, the seconds of each stage, and the constraints on a choice.

    `accuracy` is the least accuracy (A), `memory` the most bytes (M). With `aside`, lookups run beside the network, one
    at a time, so each must end before the next begins (equation 9). Without it, the network waits for each lookup, and
    a request that misses wherever it can takes at most `tail` times as long as without lookups. No variant may follow
    a sure one. In line, a sure variant may follow another at the same boundary.
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
        """Return the seconds from the end of `stage` to the end of the network."""
        return self.whole - self.ends[stage]

    def gain(self, variant: Variant) -> float:
        """Return the whole network's time over that of a hit at this variant (equation 12)."""
        return self.whole / (self.ends[variant.stage] + variant.seconds)

    def added_tail(self, variant: Variant, *, ends_sure: bool = False) -> float:
        """Return what it adds to the tail, as a share of the network's seconds; a sure variant saves what is behind it.

        `ends_sure` says whether the choice has a sure variant.
        """
        spared = self.remaining(variant.stage) if variant.sure else 0.0
        return (_lookup_seconds(variant, ends_sure) - spared) / self.whole

    @property
    def tail_budget(self) -> float:
        """The most that all lookups together may add to the tail; infinite aside, where no request waits for them."""
        return np.inf if self.aside else self.tail - 1.0

    def fits(self, chosen: Sequence[Variant]) -> bool:
        """Tell whether the choice keeps equations 8 and 9 and the tail, and has one variant at a boundary.

        `chosen` must be in order of stages, with a sure variant last at its boundary.
        """
        if sum(variant.bytes for variant in chosen) > self.memory:
            return False
        if sum(self.added_tail(variant, ends_sure=_ends_sure(chosen)) for variant in chosen) > self.tail_budget + 1e-9:
            return False
        return all(self.compatible(one, other) for one, other in zip_longest(chosen, chosen[1:]))

    def may_choose(self, variant: Variant) -> bool:
        """Tell whether any choice may have this variant, by its memory and equation 9.

        The tail is left out: a variant that breaks it alone may keep it in front of a sure one.
        """
        return variant.bytes <= self.memory and self.compatible(variant, None)

    def compatible(self, one: Variant, other: Variant | None) -> bool:
        """Tell whether `other` may come next after `one`; None stands for the end of the network.

        Aside, the lookup of `one` must have ended by then.
        """
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


def _lookup_seconds(variant: Variant, ends_sure: bool) -> float:
    """Return the latency of its lookup, in a choice that has a sure variant or in one that has none."""
    return variant.before_sure if ends_sure and variant.before_sure is not None else variant.seconds


@dataclass(frozen=True, slots=True)
class Expected:
    """What the paper's model predicts for a choice: share of correct answers and seconds (equations 7 and 10)."""

    accuracy: float
    seconds: float


def expected(problem: Problem, chosen: Sequence[Variant]) -> Expected:
    """Return accuracy and mean latency by equations 5, 7 and 10.

    Hits are assumed to be nested: a request that hits early would hit later too. So the effective hit rate of a variant
    is its own hit rate less that of the variant before it. Equation 5 as printed subtracts the *effective* rate of the
    variant before it, which counts the hits of the one before that twice: three variants of 0.6 would answer 1.2 of all
    requests.
    """
    hits, right, seconds = 0.0, 0.0, 0.0
    ends_sure = _ends_sure(chosen)
    for variant in chosen:
        effective = max(0.0, variant.hit_rate - hits)
        hits += effective
        right += effective * variant.accuracy
        seconds += effective * (problem.ends[variant.stage] + _lookup_seconds(variant, ends_sure))
    return Expected(right + 1.0 - hits, seconds + (1.0 - hits) * problem.whole)


def relaxed(problem: Problem, alpha: float) -> tuple[Variant, ...]:
    """Return the variants with the largest sum of scores, alpha x hit rate + (1 - alpha) x gain (equation 13)."""
    able = [v for v in problem.variants if v.accuracy >= problem.accuracy and problem.may_choose(v)]
    if not able:
        return ()
    rows = _Constraints(len(able))
    rows.add({k: v.bytes / 1e6 for k, v in enumerate(able)}, high=problem.memory / 1e6)
    rows.add({k: problem.added_tail(v) for k, v in enumerate(able)}, high=problem.tail_budget)
    for together in _exclusive(problem, able):
        rows.add(dict.fromkeys(together, 1.0), high=1.0)
    scores = np.array([alpha * v.hit_rate + (1.0 - alpha) * problem.gain(v) for v in able])
    found = milp(-scores, integrality=np.ones(len(able)), bounds=Bounds(0, 1), constraints=rows.constraint())
    return _ordered(able[k] for k in range(len(able)) if found.x[k] > 0.5)


def full(problem: Problem) -> tuple[Variant, ...]:
    """Return the choice of least expected latency that keeps accuracy, memory and equation 9.

    Lookups may cost less in front of a sure variant, so the best choices with one and without one are found separately.
    """
    ways = [_full(problem, ends_sure=ends_sure) for ends_sure in (False, True)]
    return min(ways, key=lambda chosen: expected(problem, chosen).seconds)


def _full(problem: Problem, *, ends_sure: bool) -> tuple[Variant, ...]:
    """Return the best choice with a sure variant, or the best without one.

    The paper multiplies choices by effective hit rates. Here the variables are links between a variant and the next
    one, since the effective hit rate of a link is known. That makes it a shortest path under two more constraints.
    """
    able = [v for v in problem.variants if problem.may_choose(v) and (ends_sure or not v.sure)]
    links: list[tuple[int | None, int]] = [(None, w) for w in range(len(able))]
    links += [(v, w) for v, w in permutations(range(len(able)), 2) if _may_follow(problem, able[v], able[w])]
    if not links or (ends_sure and not _ends_sure(able)):
        return ()
    hits = np.array([able[w].hit_rate - (able[v].hit_rate if v is not None else 0.0) for v, w in links])
    ends = [able[w] for _, w in links]
    rows = _Constraints(len(links))
    rows.add({c: end.bytes / 1e6 for c, end in enumerate(ends)}, high=problem.memory / 1e6)  # eq. 8
    rows.add({c: problem.added_tail(end, ends_sure=ends_sure) for c, end in enumerate(ends)}, high=problem.tail_budget)
    rows.add({c: hits[c] * (end.accuracy - 1.0) for c, end in enumerate(ends)}, low=problem.accuracy - 1.0)  # eq. 7
    rows.add({c: 1.0 for c, (v, _) in enumerate(links) if v is None}, high=1.0)
    flows: list[dict[int, float]] = [{} for _ in able]
    for c, (v, w) in enumerate(links):  # a variant is left at most as often as it is reached (eq. 6)
        flows[w][c] = 1.0
        if v is not None:
            flows[v][c] = -1.0
    for flow in flows:
        rows.add(flow, low=0.0)
    if ends_sure:
        rows.add({c: 1.0 for c, end in enumerate(ends) if end.sure}, low=1.0)
    saved = np.array([problem.remaining(end.stage) - _lookup_seconds(end, ends_sure) for end in ends]) / problem.whole
    found = milp(  # eq. 10, less what the network takes without a hit
        -hits * saved,
        integrality=np.ones(len(links)),
        bounds=Bounds(0, 1),
        constraints=rows.constraint(),
        options={"presolve": False},  # it takes ten times longer than the rest: the relaxation is nearly integral
    )
    if found.x is None:  # no choice with a sure variant keeps the constraints
        return ()
    return _ordered(end for c, end in enumerate(ends) if found.x[c] > 0.5)


def latency_greedy(problem: Problem) -> tuple[Variant, ...]:
    """Return the variants taken greedily by falling gain, as long as they fit (A.2.1, i)."""
    return _greedy(problem, problem.gain)


def hit_greedy(problem: Problem) -> tuple[Variant, ...]:
    """Return the variants taken greedily by falling hit rate, as long as they fit (A.2.1, ii)."""
    return _greedy(problem, lambda variant: variant.hit_rate)


def _may_follow(problem: Problem, one: Variant, other: Variant) -> bool:
    return problem.compatible(one, other) and other.hit_rate > one.hit_rate


def _greedy(problem: Problem, worth: Callable[[Variant], float]) -> tuple[Variant, ...]:
    chosen: tuple[Variant, ...] = ()
    for variant in sorted(problem.variants, key=worth, reverse=True):
        wider = _ordered((*chosen, variant))
        if variant.accuracy >= problem.accuracy and problem.fits(wider):
            chosen = wider
    return chosen


def _exclusive(problem: Problem, able: Sequence[Variant]) -> list[list[int]]:
    """Return, for each boundary, the variants of which at most one can be chosen (equation 9).

    These are the variants at the boundary itself and, aside, those whose lookup still runs when the network gets there.
    As lookups are intervals of time, this forbids exactly the pairs that overlap, and the solver hardly has to branch.
    A sure variant counts as running to the end. In line it has a place of its own behind the others of its boundary.
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


class _Constraints:
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
        """Return all of them as one constraint."""
        rows, columns, values = zip(*self._entries, strict=True)
        matrix = coo_array((values, (rows, columns)), shape=(len(self._low), self._columns)).tocsr()
        return LinearConstraint(matrix, self._low, self._high)
