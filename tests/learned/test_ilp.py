"""GATI's integer programmes against an oracle that tries everything, and by hand."""

import numpy as np
import pytest

from latebind.learned.ilp import (
    Problem,
    Variant,
    brute_force,
    expected,
    full,
    hit_greedy,
    latency_greedy,
    relaxed,
)


def random_problem(seed: int, *, stages: int = 5, kinds: int = 2, memory: float = 0.5) -> Problem:
    """Hit rates rise with depth; lookups take up to two stages; memory holds some share of all variants."""
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
    most = int(memory * sum(variant.bytes for variant in variants))
    return Problem(tuple(variants), tuple(lengths), accuracy=0.97, memory=most, aside=bool(seed % 2))


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


@pytest.mark.parametrize("seed", range(10))
def test_no_greedy_rule_beats_the_full_programme(seed: int) -> None:
    problem = random_problem(seed, stages=6)
    least = expected(problem, full(problem)).seconds
    for rule in (latency_greedy, hit_greedy):
        chosen = rule(problem)
        assert problem.fits(chosen)
        assert all(variant.accuracy >= problem.accuracy for variant in chosen)
        found = expected(problem, chosen)
        assert found.accuracy < problem.accuracy or found.seconds >= least - 1e-9


EARLY = Variant(0, "early", 0.4, 0.99, 0.1, 100)
LATE = Variant(2, "late", 0.7, 0.98, 0.1, 50)


def test_the_papers_figures_by_hand() -> None:
    problem = Problem((EARLY, LATE), (1.0, 1.0, 1.0, 1.0))
    assert problem.gain(EARLY) == pytest.approx(4.0 / 1.1)
    found = expected(problem, (EARLY, LATE))
    assert found.accuracy == pytest.approx(0.4 * 0.99 + 0.3 * 0.98 + 0.3)
    assert found.seconds == pytest.approx(0.4 * 1.1 + 0.3 * 3.1 + 0.3 * 4.0)


def test_memory_and_time_forbid() -> None:
    stages = (1.0, 1.0, 1.0, 1.0)
    assert Problem((EARLY, LATE), stages, memory=149).fits((EARLY,))
    assert not Problem((EARLY, LATE), stages, memory=149).fits((EARLY, LATE))
    slow = Variant(0, "slow", 0.5, 0.99, 2.5, 1)
    assert not Problem((slow, LATE), stages).fits((slow, LATE))  # still looking when the next begins
    assert Problem((slow, LATE), stages, aside=False).fits((slow, LATE))
    assert not Problem((EARLY,), stages).fits((EARLY, EARLY))


def test_nothing_to_choose_from_chooses_nothing() -> None:
    nothing = Problem((), (1.0, 1.0))
    assert full(nothing) == relaxed(nothing, 0.5) == latency_greedy(nothing) == brute_force(nothing) == ()
    poor = Problem((Variant(0, "poor", 0.5, 0.5, 0.1, 1),), (1.0, 1.0))
    assert relaxed(poor, 0.5) == full(poor) == ()


@pytest.mark.timeout(60)  # of a second or two: what tries all there is takes years
def test_27_stages_with_8_variants_are_not_too_many() -> None:
    problem = random_problem(1, stages=27, kinds=8, memory=0.1)
    chosen = full(problem)
    for alpha in np.linspace(0.0, 1.0, 11):
        assert problem.fits(relaxed(problem, float(alpha)))
    assert problem.fits(chosen)
