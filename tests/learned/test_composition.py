"""Composition: what may be together, what the paper's rules know, and that the search is no worse than they."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from latebind.learned.compose import Calibrated, Choice, Composition, Costs, Seen
from latebind.learned.ilp import Variant
from latebind.learned.promise import Promise

STAGES = (0.0, 1.0, 1.0, 1.0, 1.0)
VARIANTS = (
    Variant(0, "large", 0.0, 1.0, 0.3, 400),
    Variant(0, "small", 0.0, 1.0, 0.05, 50),
    Variant(1, "small", 0.0, 1.0, 0.05, 50),
    Variant(2, "large", 0.0, 1.0, 0.3, 400),
    Variant(2, "small", 0.0, 1.0, 0.05, 50),
)


def observed(seed: int, samples: int = 1_200) -> Seen:
    """Hardness decides who is right: large networks and deep ones bear more of it; scores know it with some noise."""
    random = np.random.default_rng(seed)
    hardness = random.random(samples)
    able = np.array([0.85, 0.6, 0.7, 0.95, 0.8])[:, None]
    margin = able - hardness + random.normal(0.0, 0.08, (len(VARIANTS), samples))
    return Seen(margin + random.normal(0.0, 0.05, margin.shape), margin > 0.0)


def composition(*, memory: int = 10_000, tail: float = inf) -> Composition:
    segments = (0.0, 0.0, 1.0, 1.0, 0.0, 2.0)  # between lookups of one boundary there is nothing
    costs = Costs(segments, tuple(variant.seconds for variant in VARIANTS))
    return Composition(VARIANTS, costs, STAGES, Promise(0.95, 0.9, memory, tail))


def used(found: Calibrated | None) -> Choice:
    return () if found is None else tuple(np.flatnonzero(np.isfinite(found.thresholds)).tolist())


def test_two_lookups_at_a_boundary_and_all_within_memory() -> None:
    free = composition()
    assert free.allows(())
    assert free.allows((0, 1, 2, 3, 4))
    crowded = replace(free, variants=tuple(replace(variant, stage=0) for variant in VARIANTS))
    assert crowded.allows((1, 4))
    assert not crowded.allows((1, 2, 4))
    tight = composition(memory=450)
    assert tight.allows((0, 2))
    assert not tight.allows((0, 3))


def test_one_that_is_sure_of_every_answer_may_follow_two_others() -> None:
    crowded = replace(composition(), variants=tuple(replace(variant, stage=0) for variant in VARIANTS))
    assert not crowded.allows((0, 1, 3))
    assert replace(crowded, costs=replace(crowded.costs, sure=(3,))).allows((0, 1, 3))


def test_the_papers_rules_know_each_lookup_alone() -> None:
    seen = observed(0)
    problem = composition().problem(seen)
    for variant, scores, right in zip(problem.variants, seen.scores, seen.right, strict=True):
        assert variant.accuracy >= 0.95
        threshold = np.sort(scores)[::-1][round(variant.hit_rate * len(scores)) - 1]
        hits = scores >= threshold
        assert hits.mean() == pytest.approx(variant.hit_rate)
        assert 1.0 - (hits & ~right).mean() == pytest.approx(variant.accuracy)
    assert problem.variants[0].hit_rate > problem.variants[1].hit_rate  # large before small


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("memory", [10_000, 450])
def test_the_search_is_no_worse_than_any_rule_and_keeps_its_bounds(seed: int, memory: int) -> None:
    given = composition(memory=memory)
    choosing, showing = observed(2 * seed), observed(2 * seed + 1, samples=2_000)
    taken = given.choose(choosing, [showing])
    assert taken is not None
    assert taken.lower >= 0.95
    assert given.allows(used(taken))
    for choice in given.proposals(choosing).values():
        assert given.allows(choice)
        found = given.only(choice, choosing, [showing])
        seconds = found.seconds if found else given.costs.whole
        assert taken.seconds <= seconds * 1.02  # chosen on other samples than those that are timed


def test_without_memory_nothing_is_chosen() -> None:
    taken = composition(memory=10).choose(observed(0), [observed(1)])
    assert used(taken) == ()


def test_lookups_that_all_miss_stay_within_the_tail() -> None:
    limited = composition(tail=1.08)  # of 4.0: 0.32
    assert limited.allows((0,))
    assert limited.allows((1, 2, 4))
    assert not limited.allows((0, 1))
    taken = limited.choose(observed(0), [observed(1, samples=2_000)])
    assert used(taken)
    assert limited.costs.tail(used(taken)) <= 1.08
    assert used(composition(tail=1.0).choose(observed(0), [observed(1)])) == ()


def test_the_papers_rules_keep_the_tail_too() -> None:
    limited = composition(tail=1.02)  # of 4.0: 0.08
    seen = observed(0)
    for choice in limited.proposals(seen).values():
        assert limited.costs.tail(choice) <= 1.02
    assert any(composition().costs.tail(choice) > 1.02 for choice in composition().proposals(seen).values())


def test_a_tail_shorter_than_the_base_models_makes_no_sense() -> None:
    with pytest.raises(ConfigError, match=r"0\.9 times.*give 1 or more"):
        Promise(tail=0.9)


def test_with_one_that_is_sure_the_papers_rules_find_something_within_any_tail() -> None:
    seen, of = observed(0), composition(tail=1.0)
    scores, right = seen.scores.copy(), seen.right.copy()
    scores[4], right[4] = 1e9, True
    sure = replace(of, costs=replace(of.costs, sure=(4,)))
    for choice in sure.proposals(Seen(scores, right)).values():
        assert 4 in choice
        assert sure.costs.tail(choice) <= 1.0
    assert not any(of.proposals(seen).values())
