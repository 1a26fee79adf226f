"""The expected planner against every policy there is, and what it keeps between picks."""

from random import Random

import pytest

from latebind.domain.costs import Outlook
from latebind.domain.query import Node
from latebind.queries.expected import CLOSED, END, MOST, MOST_RESTS, Expected, Prospect, alike, followed, mixed
from latebind.queries.planners import Branches
from tests.queries.plans import Case, played, policies, query, random_case, sure


@pytest.mark.parametrize(
    ("edges", "guarded"), [((), False), ((0,), False), ((0, 1), False), ((0,), True), ((0, 0), True), ((0, 1), True)]
)
def test_no_policy_does_better_on_chains_and_where_conditions_decide(edges: tuple[int, ...], guarded: bool) -> None:
    random = Random(7)
    for _ in range(12):
        case = random_case(random, edges, guarded=guarded)
        left = random.uniform(0.3, 1.0) * (len(edges) + 1)
        assert played(case, Expected(), left) == pytest.approx(max(policies(case, left)), abs=1e-9)


def test_no_policy_does_better_where_steps_go_on_side_by_side() -> None:
    random = Random(8)
    for _ in range(12):
        case = random_case(random, (0, 0), guarded=False)
        left = random.uniform(0.5, 2.0)
        assert played(case, Expected(), left) == pytest.approx(max(policies(case, left)), abs=1e-9)


def test_who_is_late_for_a_join_is_late() -> None:
    """The second of two parallel steps counts what is behind, but the first must not dawdle either."""
    fast_or_slow = Node("a", ("quick", "slow"), (0.8, 0.99))
    nodes = (fast_or_slow, Node("b", ("b",), (1.0,)), Node("c", ("c",), (1.0,), (0, 1), ((0,), (1,))))
    outlooks = {"quick": sure(0.1), "slow": sure(0.5), "b": sure(0.2), "c": sure(0.3)}
    case = Case(query(*nodes), outlooks, Branches())
    every = frozenset((0, 1, 2))
    assert Expected().pick(case.view(0.9, every), 0).option == 1
    assert Expected().pick(case.view(0.6, every), 0).option == 0


def either_way(sometimes: float) -> Case:
    """A gate, one of two steps, and one behind whichever ran."""
    nodes = (
        Node("gate", ("g1", "g2"), (0.9, 0.95)),
        Node("left", ("l",), (1.0,), (0,), ((0,),), True),
        Node("right", ("r",), (1.0,), (0,), ((0,),), True),
        Node("last", ("z1", "z2"), (0.5, 1.0), (1, 2), ((1, 2),)),
    )
    outlooks = {"g1": sure(0.1), "g2": sure(0.2), "l": sure(0.1), "r": sure(0.3), "z1": sure(0.1), "z2": sure(0.2)}
    branches = Branches()
    for i in range(1000):
        branches.observe((1, 2), (i < 1000 * sometimes, i >= 1000 * sometimes))
    return Case(query(*nodes), outlooks, branches)


@pytest.mark.parametrize(("sometimes", "gate"), [(0.98, 1), (0.02, 0)])
def test_a_step_behind_either_of_two_counts_whichever_runs(sometimes: float, gate: int) -> None:
    """Within 0.65 all of the left way fits behind the better gate, of the right way only behind the quicker one."""
    case = either_way(sometimes)
    assert Expected().pick(case.view(0.65, frozenset(range(4))), 0).option == gate


def test_without_replanning_a_later_step_is_planned_for_when_those_before_it_end() -> None:
    first = Node("a", ("a1", "a2"), (0.9, 0.95))
    case = Case(
        query(first, Node("b", ("b1", "b2"), (0.9, 0.99), (0,), ((0,),))),
        {"a1": sure(0.2), "a2": sure(0.3), "b1": sure(0.2), "b2": sure(0.45)},
        Branches(),
    )
    planner, both = Expected(), frozenset((0, 1))
    assert [planner.pick(case.view(0.70, both), node).option for node in (0, 1)] == [0, 1]
    assert [planner.pick(case.view(0.55, both), node).option for node in (0, 1)] == [1, 0]


def test_the_budget_leaves_to_the_rest_what_it_needs() -> None:
    case = Case(
        query(Node("a", ("a",), (1.0,)), Node("b", ("b1", "b2"), (0.9, 0.99), (0,), ((0,),))),
        {"a": sure(0.2), "b1": sure(0.3), "b2": sure(0.5)},
        Branches(),
    )
    both = frozenset((0, 1))
    assert Expected().pick(case.view(1.0, both), 0).budget == pytest.approx(0.5)
    assert Expected().pick(case.view(0.6, both), 0).budget == pytest.approx(0.3)
    assert Expected().pick(case.view(0.6, frozenset((1,))), 1).budget == pytest.approx(0.6)


def two_steps(first: Outlook, wait: float) -> Case:
    nodes = (Node("a", ("a1", "a2"), (0.9, 0.99)), Node("b", ("b1", "b2"), (0.9, 0.91), (0,), ((0,),)))
    return Case(query(*nodes), {"a1": sure(0.1), "a2": first, "b1": sure(0.2, wait), "b2": sure(0.4, wait)}, Branches())


def test_a_notable_wait_behind_a_step_changes_what_is_picked_for_it() -> None:
    planner, case = Expected(), two_steps(sure(0.5), 0.0)
    both = frozenset((0, 1))
    assert planner.pick(case.view(0.7, both), 0).option == 1
    later = {**case.outlooks, "b1": sure(0.2, 0.1), "b2": sure(0.4, 0.1)}
    assert planner.pick(Case(case.query, later, case.branches).view(0.7, both), 0).option == 0
    assert planner.pick(case.view(0.7, both), 0).option == 1


def test_what_follows_is_worked_out_again_where_a_model_takes_notably_longer() -> None:
    planner, case = Expected(), two_steps(sure(0.5), 0.0)
    both = frozenset((0, 1))
    planner.pick(case.view(0.7, both), 0)
    kept = dict(planner._rests)
    for slower, same in ((0.402, True), (0.45, False)):
        later = {**case.outlooks, "b1": sure(0.204), "b2": sure(slower)}
        planner.pick(Case(case.query, later, case.branches).view(0.7, both), 0)
        assert all(planner._rests[key] is rest for key, rest in kept.items()) is same


def test_what_is_learned_of_conditions_changes_the_plan() -> None:
    planner, case, every = Expected(), either_way(0.98), frozenset(range(4))
    assert planner.pick(case.view(0.65, every), 0).option == 1
    for _ in range(50_000):
        case.branches.observe((1, 2), (False, True))
    assert planner.pick(case.view(0.65, every), 0).option == 0


@pytest.mark.parametrize(
    ("seen", "same"),
    [
        (Outlook(0.04, (0.24, 1.04), (0.54, 0.46)), True),
        (Outlook(0.06, (0.2, 1.0), (0.5, 0.5)), False),
        (Outlook(0.0, (0.26, 1.0), (0.5, 0.5)), False),
        (Outlook(0.0, (0.2, 1.0), (0.56, 0.44)), False),
        (sure(1.0), False),
    ],
)
def test_outlooks_are_alike_up_to_a_twentieth_of_the_whole_time(seen: Outlook, same: bool) -> None:
    assert alike(Outlook(0.0, (0.2, 1.0), (0.5, 0.5)), seen, seen.wait) is same


def worth(found: Prospect, left: float) -> float:
    place = found.place(left)
    return found.right[place] if place >= 0 else 0.0


def test_a_model_with_caches_is_worth_what_ends_in_time() -> None:
    found = followed(Outlook(0.1, (0.2, 0.6), (0.75, 0.25)), 0.8, END)
    assert [worth(found, left) for left in (-0.1, 0.0, 0.29, 0.3, 0.69, 0.7)] == pytest.approx([0, 0, 0, 0.6, 0.6, 0.8])


def test_a_prospect_of_too_many_steps_becomes_coarser_where_it_matters_least_and_never_promises_more() -> None:
    many = 100 * MOST
    fine = Prospect(tuple(float(i) for i in range(many)), tuple(i / many for i in range(many)))
    coarse = mixed([(1.0, fine)])
    assert len(coarse.at) <= 2 * MOST
    for left in range(0, many, 7):
        most, value, kept = fine.right[-1], worth(fine, left), worth(coarse, left)
        assert kept <= value
        assert value - kept <= CLOSED * (most - kept) + 1 / many


def test_a_large_query_with_many_conditions_is_planned_with_few_tables() -> None:
    random = Random(11)
    nodes, outlooks = [Node("0", ("0-a", "0-b"), (0.8, 0.9))], {"0-a": sure(0.1), "0-b": sure(0.2)}
    for i in range(1, 16):
        before = tuple(sorted(random.sample(range(i), min(i, 6))))
        nodes.append(Node(f"{i}", (f"{i}-a", f"{i}-b"), (0.8, 0.9), before, (before[:1],), guarded=True))
        outlooks |= {f"{i}-a": sure(0.1), f"{i}-b": sure(0.2)}
    planner, case = Expected(), Case(query(*nodes), outlooks, Branches())
    every = frozenset(range(16))
    assert planner.pick(case.view(10.0, every), 0).option == 1
    assert planner.pick(case.view(0.1, every), 0).option == 0
    assert len(planner._rests) <= MOST_RESTS + len(nodes)


def test_who_waits_for_a_later_step_now_counts_as_those_before_him_on_average() -> None:
    planner, case = Expected(), two_steps(sure(0.5), 0.0)
    both, last = frozenset((0, 1)), frozenset((1,))
    for _ in range(100):  # the last step never waited
        planner.pick(case.view(0.7, last), 1)
    busy = Case(case.query, {**case.outlooks, "b1": sure(0.2, 0.1), "b2": sure(0.4, 0.1)}, case.branches)
    assert planner.pick(busy.view(0.7, both), 0).option == 1
    for _ in range(100):  # now it does, as a rule
        planner.pick(busy.view(0.7, last), 1)
    assert planner.pick(busy.view(0.7, both), 0).option == 0


def test_a_step_behind_two_is_planned_with_all_that_follows_either() -> None:
    """3 waits for 0 and 1, and 2 for 1 alone: nobody has asked for its models before."""
    nodes = (
        Node("0", ("a",), (0.9,)),
        Node("1", ("b",), (0.9,)),
        Node("2", ("c",), (0.9,), (1,), ((1,),)),
        Node("3", ("d1", "d2"), (0.8, 0.9), (0, 1), ((0,), (1,))),
    )
    outlooks = {"a": sure(0.1), "b": sure(0.2), "c": sure(0.1), "d1": sure(0.1), "d2": sure(0.3)}
    case, every = Case(query(*nodes), outlooks, Branches()), frozenset(range(4))
    assert Expected().pick(case.view(0.6, every), 3).option == 1
    assert Expected().pick(case.view(0.4, every), 3).option == 0
