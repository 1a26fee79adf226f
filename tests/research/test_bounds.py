"""Bounds are what they say: equal to Belady on unit sizes, to a search of everything on small cases, never above it."""

from functools import cache
from itertools import chain, combinations
from math import inf
from random import Random

import pytest

from latebind.domain.costs import Footprint
from research.mcache.bounds import least_streaming, least_whole

UNIT = Footprint((10,), (1.0,))


def belady(models: str, slots: int) -> int:
    """Misses of the policy that lets go who is used last of all."""
    there: set[str] = set()
    misses = 0
    for use, name in enumerate(models):
        if name in there:
            continue
        misses += 1
        if len(there) == slots:
            there.remove(max(there, key=lambda other: (models + other).index(other, use)))
        there.add(name)
    return misses


def searched_whole(models: str, prints: dict[str, Footprint], budget: int) -> float:
    """Try every set to keep at every miss."""

    @cache
    def least(use: int, there: frozenset[str]) -> float:
        if use == len(models):
            return 0.0
        name = models[use]
        if name in there:
            return least(use + 1, there)
        costs = [inf]
        for kept in chain.from_iterable(combinations(sorted(there), n) for n in range(len(there) + 1)):
            if prints[name].size + sum(prints[other].size for other in kept) <= budget:
                costs.append(prints[name].penalty + least(use + 1, frozenset({name, *kept})))
        return min(costs)

    return least(0, frozenset())


def letters(random: Random, names: str, length: int) -> str:
    return "".join(random.choices(names, k=length))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("slots", [1, 2, 4])
def test_all_bounds_are_belady_where_all_models_are_alike_and_of_one_stage(seed: int, slots: int) -> None:
    models = letters(Random(seed), "abcdef", 60)
    prints = dict.fromkeys("abcdef", UNIT)
    for bound in (least_whole, least_streaming):
        assert bound(models, prints, 10 * slots) == pytest.approx(belady(models, slots))


@pytest.mark.parametrize("seed", range(8))
def test_the_exact_optimum_is_that_of_a_search_of_everything(seed: int) -> None:
    random = Random(seed)
    sizes = {name: random.randint(1, 4) for name in "abcd"}
    prints = {name: Footprint((size,), (random.randint(1, 9) / 2,), fixed=0.25) for name, size in sizes.items()}
    models = letters(random, "abcd", 12)
    budget = max(sizes.values()) + random.randint(0, 4)
    assert least_whole(models, prints, budget) == pytest.approx(searched_whole(models, prints, budget))


def test_what_does_not_fit_cannot_be_run_unless_it_streams() -> None:
    prints = {"a": Footprint((2, 2), (1.0, 1.0))}
    assert least_whole("aa", prints, 3) == inf
    assert least_streaming("aa", prints, 3) == pytest.approx(2.5)
    assert least_streaming("aa", prints, 1) == inf
