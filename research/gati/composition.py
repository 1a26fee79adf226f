"""GATI's composition (section 4, appendix A): which variant of a learned cache at which boundary, by its own rules.

`relaxed` maximizes scores (equations 11 to 14), `full` minimizes the expected latency that follows from hit rates
(equations 5 to 10); both are integer programmes, solved by HiGHS. `taken_greedily` has the paper's greedy rules (A.2.1,
i and ii). None knows which hits of two lookups are on the same samples; `learned.compose` counts that.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, permutations

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from latebind.learned.compose import Choice, Composition, Seen, Variant, hits_alone

ALPHAS = tuple(np.linspace(0.0, 1.0, 11).tolist())  # of the relaxed programme


@dataclass(frozen=True, slots=True)
class Problem:
    """Variants to choose from, the seconds of each stage, and the constraints on a choice.

    `accuracy` is the least accuracy (A), `memory` the most bytes (M). The network waits for each lookup, so there is no
    equation 9; a request that misses wherever it can takes at most `tail` times as long as without lookups. No variant
    may follow a sure one, which may follow another at the same boundary.
    """

    variants: tuple[Variant, ...]
    stages: tuple[float, ...]
    accuracy: float = 0.97
    memory: int = 1 << 62
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

    def added_tail(self, variant: Variant) -> float:
        """Return what it adds to the tail, as a share of the network's seconds; a sure one saves what follows it."""
        spared = self.remaining(variant.stage) if variant.sure else 0.0
        return (variant.seconds - spared) / self.whole

    def fits(self, chosen: Sequence[Variant]) -> bool:
        """Return whether the choice keeps equation 8 and the tail, and has one variant at a boundary.

        `chosen` must be in order of stages, with a sure variant last at its boundary.
        """
        if sum(variant.bytes for variant in chosen) > self.memory:
            return False
        if sum(map(self.added_tail, chosen)) > self.tail - 1.0 + 1e-9:
            return False
        return all(compatible(one, other) for one, other in pairwise(chosen))


def compatible(one: Variant, other: Variant) -> bool:
    """Return whether `other` may come next after `one`."""
    return not one.sure and (other.stage > one.stage or (other.stage == one.stage and other.sure))


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
    for variant in chosen:
        effective = max(0.0, variant.hit_rate - hits)
        hits += effective
        right += effective * variant.accuracy
        seconds += effective * (problem.ends[variant.stage] + variant.seconds)
    return Expected(right + 1.0 - hits, seconds + (1.0 - hits) * problem.whole)


def relaxed(problem: Problem, alpha: float) -> tuple[Variant, ...]:
    """Return the variants with the largest sum of scores, alpha x hit rate + (1 - alpha) x gain (equation 13)."""
    able = [v for v in problem.variants if v.accuracy >= problem.accuracy and v.bytes <= problem.memory]
    if not able:
        return ()
    rows: list[tuple[dict[int, float], float, float]] = [
        ({k: v.bytes / 1e6 for k, v in enumerate(able)}, -np.inf, problem.memory / 1e6),
        ({k: problem.added_tail(v) for k, v in enumerate(able)}, -np.inf, problem.tail - 1.0),
    ]
    rows += [(dict.fromkeys(together, 1.0), -np.inf, 1.0) for together in _exclusive(able)]
    scores = np.array([alpha * v.hit_rate + (1.0 - alpha) * problem.gain(v) for v in able])
    constraint = _constraint(rows, len(able))
    found = milp(-scores, integrality=np.ones(len(able)), bounds=Bounds(0, 1), constraints=constraint)
    return ordered(able[k] for k in range(len(able)) if found.x[k] > 0.5)


def full(problem: Problem) -> tuple[Variant, ...]:
    """Return the choice of least expected latency that keeps accuracy, memory and the tail.

    The paper multiplies choices by effective hit rates. Here the variables are links between a variant and the next
    one, since the effective hit rate of a link is known. That makes it a shortest path under two more constraints.
    """
    able = [v for v in problem.variants if v.bytes <= problem.memory]
    links: list[tuple[int | None, int]] = [(None, w) for w in range(len(able))]
    for v, w in permutations(range(len(able)), 2):
        if compatible(able[v], able[w]) and able[w].hit_rate > able[v].hit_rate:
            links.append((v, w))
    if not links:
        return ()
    hits = np.array([able[w].hit_rate - (able[v].hit_rate if v is not None else 0.0) for v, w in links])
    ends = [able[w] for _, w in links]
    flows: list[dict[int, float]] = [{} for _ in able]
    for c, (left, reached) in enumerate(links):  # a variant is left at most as often as it is reached (eq. 6)
        flows[reached][c] = 1.0
        if left is not None:
            flows[left][c] = -1.0
    rows: list[tuple[dict[int, float], float, float]] = [
        ({c: end.bytes / 1e6 for c, end in enumerate(ends)}, -np.inf, problem.memory / 1e6),  # eq. 8
        ({c: problem.added_tail(end) for c, end in enumerate(ends)}, -np.inf, problem.tail - 1.0),
        ({c: hits[c] * (end.accuracy - 1.0) for c, end in enumerate(ends)}, problem.accuracy - 1.0, np.inf),  # eq. 7
        ({c: 1.0 for c, (v, _) in enumerate(links) if v is None}, -np.inf, 1.0),
        *((flow, 0.0, np.inf) for flow in flows),
    ]
    saved = np.array([problem.remaining(end.stage) - end.seconds for end in ends]) / problem.whole
    found = milp(  # eq. 10, less what the network takes without a hit
        -hits * saved,
        integrality=np.ones(len(links)),
        bounds=Bounds(0, 1),
        constraints=_constraint(rows, len(links)),
        options={"presolve": False},  # it takes ten times longer than the rest: the relaxation is nearly integral
    )
    return ordered(end for c, end in enumerate(ends) if found.x[c] > 0.5)


def _exclusive(able: Sequence[Variant]) -> list[list[int]]:
    """Return, for each place, the variants of which at most one can be chosen: those there, and sure ones before.

    A sure variant has a place of its own behind the others of its boundary.
    """
    places = sorted({(variant.stage, variant.sure) for variant in able})
    return [
        [k for k, v in enumerate(able) if (v.stage, v.sure) == place or (v.sure and v.stage < place[0])]
        for place in places
    ]


def ordered(variants: Iterable[Variant]) -> tuple[Variant, ...]:
    """Return variants in the order in which a request meets them."""
    return tuple(sorted(variants, key=lambda variant: (variant.stage, variant.sure)))


def _constraint(rows: Sequence[tuple[Mapping[int, float], float, float]], columns: int) -> LinearConstraint:
    """Return rows of coefficients by column, each with the least and the most of their sum, as a constraint."""
    entries = [(number, column, value) for number, (row, _, _) in enumerate(rows) for column, value in row.items()]
    numbers, places, values = zip(*entries, strict=True)
    matrix = coo_array((values, (numbers, places)), shape=(len(rows), columns)).tocsr()
    return LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows])


def problem_of(composition: Composition, seen: Seen) -> Problem:
    """Return the problem as the paper's rules see it.

    They know the hit rate and accuracy of each lookup alone, at the laxest threshold that keeps the target on `seen`.
    """
    variants, promise = [], composition.promise
    for k, variant in enumerate(composition.variants):
        hits, wrong = hits_alone(seen.scores[k], seen.right[k], 1.0 - promise.fidelity)
        variants.append(replace(variant, hit_rate=hits, accuracy=1.0 - wrong, sure=k in composition.costs.sure))
    memory = promise.cache_bytes
    return Problem(tuple(variants), composition.stages, promise.fidelity, memory, tail=promise.tail)


def proposals(composition: Composition, seen: Seen) -> dict[str, Choice]:
    """Return what the paper's programmes and greedy rules choose."""
    problem = problem_of(composition, seen)
    swept = min((relaxed(problem, alpha) for alpha in ALPHAS), key=lambda chosen: expected(problem, chosen).seconds)
    chosen = {
        "full programme": full(problem),
        "relaxed programme": swept,
        "latency greedy": taken_greedily(problem, problem.gain),
        "hit-rate greedy": taken_greedily(problem, lambda variant: variant.hit_rate),
    }
    places = {variant: k for k, variant in enumerate(problem.variants)}
    return {rule: tuple(sorted(places[variant] for variant in variants)) for rule, variants in chosen.items()}


def taken_greedily(problem: Problem, worth: Callable[[Variant], float]) -> tuple[Variant, ...]:
    """Return the variants taken by falling worth, as long as they fit."""
    chosen: tuple[Variant, ...] = ()
    for variant in sorted(problem.variants, key=worth, reverse=True):
        wider = ordered((*chosen, variant))
        if variant.accuracy >= problem.accuracy and problem.fits(wider):
            chosen = wider
    return chosen
