"""Splits of the deadline: over all paths, and by algorithm 1 to the letter."""

from collections.abc import Sequence
from random import Random

import pytest

from latebind.domain.query import Node
from latebind.queries.planners import Branches, Equal, Planner, Proportional, heaviest_path
from tests.queries.plans import Case, query, random_case, sure


def budget(planner: Planner, case: Case, node: int, left: float, opened: Sequence[int]) -> float:
    return planner.pick(case.view(left, frozenset(opened)), node).budget


def diamond_with_a_tail() -> Case:
    """0 -> 1 -> 2 -> 4 -> 5 and 0 -> 3 -> 4: node 3 may take 4 seconds at most, the others 1."""
    after = [(), (0,), (1,), (0,), (2, 3), (4,)]
    nodes = [Node(f"{i}", (f"{i}-a", f"{i}-b"), (0.8, 0.9), before) for i, before in enumerate(after)]
    outlooks = {f"{i}-{which}": sure(seconds) for i in range(6) for which, seconds in (("a", 0.5), ("b", 1.0))}
    return Case(query(*nodes), {**outlooks, "3-b": sure(4.0)}, Branches())


def test_an_equal_share_is_the_least_of_all_paths() -> None:
    case, every = diamond_with_a_tail(), range(6)
    budgets = [budget(Equal(), case, node, 20.0, every) for node in every]
    assert budgets == pytest.approx([4.0, 4.0, 4.0, 5.0, 4.0, 4.0])


def test_equation_4_a_proportional_share_is_the_least_of_all_paths() -> None:
    case, every = diamond_with_a_tail(), range(6)
    budgets = [budget(Proportional(), case, node, 35.0, every) for node in every]
    assert budgets == pytest.approx([5.0, 7.0, 7.0, 20.0, 5.0, 5.0])


def test_nodes_that_have_ended_or_are_left_out_take_no_share() -> None:
    case = diamond_with_a_tail()
    assert budget(Equal(), case, 3, 9.0, (3, 4, 5)) == pytest.approx(3.0)
    assert budget(Equal(), case, 5, 9.0, (5,)) == pytest.approx(9.0)


def paths(case: Case, opened: frozenset[int], path: tuple[int, ...]) -> list[tuple[int, ...]]:
    behind = [i for i in case.after(path[-1]) if i in opened]
    return [found for i in behind for found in paths(case, opened, (*path, i))] if behind else [path]


def test_the_heaviest_path_is_that_of_all_paths_there_are() -> None:
    random = Random(3)
    for _ in range(200):
        after = [tuple(j for j in range(i) if random.random() < 0.4) for i in range(7)]
        nodes = [Node(f"{i}", ("m",), (1.0,), before) for i, before in enumerate(after)]
        case = Case(query(*nodes), {"m": sure(1.0)}, Branches())
        opened = frozenset(i for i in range(7) if random.random() < 0.8)
        weights = {i: random.random() for i in sorted(opened)}
        starts = [i for i in opened if not opened & set(after[i])]
        every = [path for start in starts for path in paths(case, opened, (start,))]
        for node in opened:
            most = max(sum(weights[i] for i in path) for path in every if node in path)
            assert heaviest_path(case.view(1.0, opened), node, weights) == pytest.approx(most)


def algorithm_1(shares: Sequence[float], taken: Sequence[float], deadline: float) -> list[float]:
    """Return the budget of each node of a chain as it is picked; what is saved is spread by `shares` over the rest."""
    budgets = [deadline * share / sum(shares) for share in shares]
    used = []
    for node, seconds in enumerate(taken):
        used.append(budgets[node])
        saved = budgets[node] - seconds
        for i in range(node + 1, len(shares)):
            budgets[i] += saved * shares[i] / sum(shares[node + 1 :])
    return used


@pytest.mark.parametrize("proportional", [False, True])
def test_splitting_what_is_left_among_open_nodes_is_algorithm_1(proportional: bool) -> None:
    random = Random(5)
    for _ in range(100):
        case = random_case(random, (0, 1, 2), guarded=False, options=3)
        longest = [
            max(case.outlooks[model].wait + case.outlooks[model].whole for model in node.models)
            for node in case.query.nodes
        ]
        taken = [random.uniform(0.0, 1.5) for _ in longest]
        planner: Planner = Proportional() if proportional else Equal()
        left, found = 4.0, list[float]()
        for node, seconds in enumerate(taken):
            found.append(budget(planner, case, node, left, range(node, 4)))
            left -= seconds
        assert found == pytest.approx(algorithm_1(longest if proportional else [1.0] * 4, taken, 4.0))
