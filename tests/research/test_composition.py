"""GATI's integer programmes against an oracle that tries everything, and by hand."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from latebind.learned.compose import Variant
from research.gati.composition import Problem, expected, full, relaxed


def random_problem(seed: int, *, stages: int = 5, kinds: int = 2, memory: float = 0.5) -> Problem:
    """Hit rates rise with depth; lookups take up to two stages; memory holds some share of all variants.

    All are within a tail, and of every four two have lookups that are sure, at two boundaries.
    """
    random = np.random.default_rng(seed)
    lengths = random.uniform(0.5, 1.5, stages)
    variants = [
        Variant(
            stage,
            f"kind {kind}",
            float(np.clip((stage + 1) / stages * random.uniform(0.6, 1.0), 0.0, 1.0)),
            float(random.uniform(0.93, 1.0)),
            float(random.uniform(0.05, 2.0)),
            int(random.integers(1, 100)) * 10_000,
        )
        for stage in range(stages - 1)
        for kind in range(kinds)
    ]
    if seed % 4 >= 2:
        variants += [
            Variant(stage, "sure", 1.0, float(random.uniform(0.96, 1.0)), seconds, 200_000, sure=True)
            for stage, seconds in ((0, 0.7 * sum(lengths)), (stages - 2, 0.5))
        ]
    most = int(memory * sum(variant.bytes for variant in variants))
    tail = float(random.uniform(1.05, 1.6))
    return Problem(tuple(variants), tuple(lengths), accuracy=0.97, memory=most, tail=tail)


def brute_force(problem: Problem) -> tuple[Variant, ...]:
    """Return what `full` should return, by trying every choice."""
    best: tuple[Variant, ...] = ()
    least = problem.whole
    for chosen in choices(problem):
        found = expected(problem, chosen)
        good = problem.fits(chosen) and found.accuracy >= problem.accuracy - 1e-12
        if good and found.seconds < least - 1e-15:
            best, least = chosen, found.seconds
    return best


def choices(problem: Problem) -> Iterator[tuple[Variant, ...]]:
    places = sorted({(variant.stage, variant.sure) for variant in problem.variants})
    at = [[None, *(v for v in problem.variants if (v.stage, v.sure) == place)] for place in places]
    for chosen in product(*at):
        yield tuple(variant for variant in chosen if variant is not None)


@pytest.mark.parametrize("seed", range(50))
def test_the_full_programme_finds_what_trying_everything_finds(seed: int) -> None:
    problem = random_problem(seed)
    best, found = brute_force(problem), full(problem)
    assert problem.fits(found)
    one, other = expected(problem, found), expected(problem, best)
    assert one.accuracy >= problem.accuracy - 1e-6
    assert one.seconds == pytest.approx(other.seconds, rel=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_the_relaxed_programme_has_the_largest_sum_of_scores(seed: int) -> None:
    problem = random_problem(seed, stages=4)
    for alpha in (0.0, 0.3, 1.0):

        def score(chosen: tuple[Variant, ...], alpha: float = alpha) -> float:
            return sum(alpha * v.hit_rate + (1 - alpha) * problem.gain(v) for v in chosen)

        able = [v for v in problem.variants if v.accuracy >= problem.accuracy]
        subsets = [tuple(v for k, v in enumerate(able) if bits >> k & 1) for bits in range(1 << len(able))]
        best = max((score(chosen) for chosen in subsets if problem.fits(chosen)), default=0.0)
        found = relaxed(problem, alpha)
        assert problem.fits(found)
        assert score(found) == pytest.approx(best)


EARLY = Variant(0, "early", 0.4, 0.99, 0.1, 100)
LATE = Variant(2, "late", 0.7, 0.98, 0.1, 50)


def test_whom_no_lookup_answers_stays_within_the_tail() -> None:
    stages = (1.0, 1.0, 1.0, 1.0)
    tight = Problem((EARLY, LATE), stages, tail=1.04)  # of 4.0: 0.16
    assert tight.fits((EARLY,))
    assert not tight.fits((EARLY, LATE))
    assert replace(tight, tail=1.05).fits((EARLY, LATE))
    assert len(full(tight)) == 1
    assert relaxed(tight, 1.0) == (LATE,)


def test_nothing_to_choose_from_chooses_nothing() -> None:
    nothing = Problem((), (1.0, 1.0))
    assert full(nothing) == relaxed(nothing, 0.5) == brute_force(nothing) == ()
    poor = Problem((Variant(0, "poor", 0.5, 0.5, 0.1, 1),), (1.0, 1.0))
    assert relaxed(poor, 0.5) == full(poor) == ()


@pytest.mark.timeout(60)  # of a second or two: what tries all there is takes years
def test_27_stages_with_8_variants_are_not_too_many() -> None:
    problem = random_problem(1, stages=27, kinds=8, memory=0.1)
    chosen = full(problem)
    assert problem.fits(chosen)
    assert problem.fits(relaxed(problem, 0.5))
