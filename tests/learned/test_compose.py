"""Composition: the objective counts what a walk counts, and the search finds what trying everything finds."""

import itertools
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest

from latebind.learned.compose import Composer, Costs, Floats, Seen, fastest, send, threshold_path


def seen(seed: int, *, lookups: int = 3, samples: int = 8) -> Seen:
    """Lookups that grow better with depth and are mostly sure where they are right."""
    rng = np.random.default_rng(seed)
    right = rng.random((lookups, samples)) < np.linspace(0.6, 0.9, lookups)[:, None]
    scores = np.round(right + rng.normal(0.0, 0.7, right.shape), 2)
    return Seen(scores, right)


COSTS = Costs((1.0, 1.0, 1.0, 1.0), (0.1, 0.1, 0.1))


def brute_force(composer: Composer, of: Seen, price: float) -> float:
    choices = [[*np.unique(row), np.inf] for row in of.scores]
    return min(composer.value(np.array(thresholds), price) for thresholds in product(*choices))


def test_a_sample_pays_for_stages_and_lookups_until_it_leaves() -> None:
    two = Seen(np.array([[0.9, 0.1, 0.1], [0.0, 0.9, 0.1]]), np.array([[True, True, True], [True, False, True]]))
    result = send(np.array([0.5, 0.5]), two, Costs((1.0, 2.0, 4.0), (0.1, 0.2)))
    np.testing.assert_allclose(result.seconds, [1.1, 3.3, 7.3])
    assert result.left_at.tolist() == [0, 1, 2]
    assert result.wrong.tolist() == [False, True, False]


def test_a_lookup_that_is_not_there_costs_nothing() -> None:
    result = send(np.array([np.inf, np.inf, np.inf]), seen(0), COSTS)
    np.testing.assert_allclose(result.seconds, COSTS.whole)
    assert not result.wrong.any()


@pytest.mark.parametrize("price", [0.5, 4.0, 30.0])
def test_the_search_over_lookups_finds_the_best_set_of_them(price: float) -> None:
    for seed in range(20):
        composer = Composer(seen(seed, lookups=4, samples=40), Costs((1.0,) * 5, (0.15,) * 4))
        sets = [there for size in range(5) for there in combinations(range(4), size)]
        best = min(composer.coordinate_descent(price, there)[1] for there in sets)
        assert composer.value(composer.choose(price), price) == pytest.approx(best, rel=0.01)


def test_thresholds_come_close_to_trying_all_of_them() -> None:
    ratios = []
    for seed in range(30):
        small = seen(seed)
        composer = Composer(small, COSTS)
        best = brute_force(composer, small, 3.0)
        ratios.append(composer.value(composer.choose(3.0), 3.0) / best)
    assert min(ratios) >= 1.0 - 1e-12
    assert np.mean(np.isclose(ratios, 1.0)) >= 0.9
    assert max(ratios) < 1.1


def test_the_stated_value_is_that_of_the_walk() -> None:
    composer = Composer(seen(3, samples=50), COSTS)
    thresholds, value = composer.coordinate_descent(2.0, (0, 1, 2))
    assert composer.value(thresholds, 2.0) == pytest.approx(value)


def test_an_end_that_is_another_models_counts_for_those_who_get_there() -> None:
    one = Seen(np.array([[0.9, 0.1, 0.1]]), np.array([[False, True, True]]), np.array([False, False, True]))
    assert send(np.array([0.5]), one, Costs((1.0, 1.0), (0.1,))).wrong.tolist() == [True, True, False]
    of = replace(seen(3, samples=50), end=np.random.default_rng(0).random(50) < 0.8)
    thresholds, value = Composer(of, COSTS).coordinate_descent(2.0, (0, 1, 2))
    assert Composer(of, COSTS).value(thresholds, 2.0) == pytest.approx(value)
    assert of.take(np.arange(10)).end is not None


def test_equal_scores_are_never_parted() -> None:
    same = Seen(np.array([[0.5, 0.5, 0.5]]), np.array([[True, True, False]]))
    composer = Composer(same, Costs((1.0, 1.0), (0.1,)))
    assert composer.choose(10.0)[0] == np.inf
    assert composer.choose(0.1)[0] == 0.5


def test_a_lookup_that_costs_more_than_it_saves_is_left_out() -> None:
    thresholds = Composer(seen(1, samples=40), Costs((1.0,) * 4, (9.0, 9.0, 9.0))).choose(0.1)
    assert np.isinf(thresholds).all()


def test_the_path_goes_from_strict_to_lax() -> None:
    many = seen(5, samples=400)
    wrong = [
        send(thresholds, many, COSTS).wrong.mean() for thresholds in threshold_path(Composer(many, COSTS), fidelity=0.9)
    ]
    assert wrong[0] <= 0.01
    assert wrong[-1] > wrong[0]
    assert np.polyfit(range(len(wrong)), wrong, 1)[0] > 0


def test_the_path_is_the_same_each_time() -> None:
    def once() -> list[Floats]:
        return threshold_path(Composer(seen(5, samples=100), COSTS), fidelity=0.9)

    for first, second in zip(once(), once(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_path_keeps_to_the_lookups_that_are_fastest_at_the_target() -> None:
    """A quick lookup that errs in one of ten pays at low prices only: on the way to it a test would end too soon."""
    random = np.random.default_rng(0)
    hardness, rank = random.random(2_000), random.permutation(2_000)
    seen = Seen(np.stack([-1.0 * rank, 1.0 - hardness]), np.stack([rank % 10 != 0, hardness < 0.9]))
    composer = Composer(seen, Costs((0.0, 0.0, 1.0), (0.01, 0.5)))
    strict, lax = (threshold_path(composer, fidelity=fidelity) for fidelity in (0.98, 0.8))
    assert all(np.isinf(thresholds[0]) for thresholds in strict)
    assert any(np.isfinite(thresholds[1]) for thresholds in strict)
    assert any(np.isfinite(thresholds[0]) for thresholds in lax)


def test_a_quick_lookup_pays_before_a_sure_one_that_takes_a_small_share_of_the_network() -> None:
    """It errs in one of twelve, where a wrong answer may cost but a tenth of the network."""
    random = np.random.default_rng(0)
    sure, right = np.full(2_000, 1.0), random.random(2_000) < 11 / 12
    both = Seen(np.stack([random.random(2_000), sure]), np.stack([right, np.ones(2_000, dtype=np.bool_)]))
    costs = Costs((0.0, 0.0, 1.0), (0.005, 0.07), sure=(1,))
    composer = Composer(both, costs, allows=lambda choice: 1 in choice)
    choice, seconds = fastest(composer, fidelity=0.9)
    assert choice == (0, 1)
    assert seconds < 0.05
    assert all(np.isfinite(threshold_path(composer, fidelity=0.9)[-1]))


def test_the_path_begins_without_exits_and_takes_small_steps() -> None:
    many = seen(5, samples=400)
    candidates = threshold_path(Composer(many, COSTS), fidelity=0.9)
    let_through = [(many.scores >= thresholds[:, None]).sum(axis=1) for thresholds in candidates]
    assert not let_through[0].any()
    steps = [int(np.abs(b - a).max()) for a, b in itertools.pairwise(let_through)]
    assert 1 <= max(steps) <= 0.02 * 400


def test_lookups_aside_take_time_from_those_that_hit_only() -> None:
    one = Seen(np.array([[0.9, 0.1]]), np.ones((1, 2), dtype=np.bool_))
    costs = Costs((1.0, 2.0), (0.5,), beside=(0.1,))
    assert send(np.array([0.5]), one, costs).seconds.tolist() == pytest.approx([1.5, 3.1])
    assert costs.tail((0,)) == pytest.approx(3.1 / 3.0)


def test_aside_the_search_is_exact_too() -> None:
    for seed in range(30):
        composer = Composer(seen(seed, lookups=2, samples=30), Costs((1.0,) * 3, (0.4, 0.3), beside=(0.05, 0.02)))
        best = min(
            composer.value(np.array([first, second]), 1.5)
            for first in (*composer.seen.scores[0], np.inf)
            for second in (*composer.seen.scores[1], np.inf)
        )
        assert composer.value(composer.choose(1.5), 1.5) <= best * 1.02
