"""What every planner keeps to, and the example of section 5."""

from random import Random

import pytest

from latebind.domain.costs import Outlook
from latebind.domain.query import Node
from latebind.queries import PLANNERS
from latebind.queries.planners import Branches, Planner
from tests.queries.plans import Case, early, query, random_case, sure

GATE = Node("objects", ("resnet-18", "resnet-34", "resnet-50"), (0.911, 0.929, 0.941))
FACES = Node("faces", ("9", "18", "50", "101"), (0.955, 0.976, 0.981, 0.991), (0,), ((0,),), True)
VEHICLES = Node("vehicles", ("r9", "r18", "r50", "r101"), (0.902, 0.918, 0.926, 0.934), (0,), ((0,),), True)
TABLE_5 = {
    **{"resnet-18": 0.02736, "resnet-34": 0.04105, "resnet-50": 0.0545},
    **{"9": 0.01738, "18": 0.03675, "50": 0.05834, "101": 0.11032},
    **{"r9": 0.01614, "r18": 0.02368, "r50": 0.05412, "r101": 0.11142},
}
OPEN = frozenset((0, 1, 2))


def traffic() -> Case:
    branches = Branches()
    for way in ((True, False),) * 46 + ((False, True),) * 45 + ((False, False),) * 9:
        branches.observe((1, 2), way)
    return Case(query(GATE, FACES, VEHICLES), {name: sure(seconds) for name, seconds in TABLE_5.items()}, branches)


@pytest.fixture(params=["equal", "proportional", "expected"])
def planner(request: pytest.FixtureRequest) -> Planner:
    return PLANNERS[request.param]()


def picked(planner: Planner, case: Case, node: int, left: float, opened: frozenset[int]) -> str:
    return case.query.nodes[node].models[planner.pick(case.view(left, opened), node).option]


@pytest.mark.parametrize("edges", [(), (0, 1), (0, 0), (0, 0, 1, 2)])
def test_an_option_is_picked_that_there_is_and_no_more_than_what_is_left_is_planned(
    planner: Planner, edges: tuple[int, ...]
) -> None:
    random = Random(1)
    for _ in range(20):
        case = random_case(random, edges, guarded=True, options=3)
        left = random.uniform(-0.5, 4.0)
        for node in range(len(edges) + 1):
            choice = planner.pick(case.view(left, frozenset(range(node, len(edges) + 1))), node)
            assert choice.option in range(3)
            assert choice.budget <= max(left, 0.0) + 1e-9


def test_of_equally_accurate_models_none_is_picked_that_is_slower(planner: Planner) -> None:
    node = Node("step", ("slow", "quick", "middling"), (0.9, 0.9, 0.9))
    case = Case(query(node), {"slow": sure(0.3), "quick": sure(0.1), "middling": sure(0.2)}, Branches())
    for left in (0.0, 0.15, 0.25, 1.0):
        assert picked(planner, case, 0, left, frozenset((0,))) == "quick"


def test_with_more_time_left_the_last_step_is_never_less_accurate(planner: Planner) -> None:
    case = traffic()
    for node in (1, 2):
        options = [planner.pick(case.view(0.005 * i, frozenset((node,))), node).option for i in range(4, 40)]
        assert options == sorted(options)
        assert (options[0], options[-1]) == (0, 3)


def test_a_wait_counts_like_time_that_a_model_takes(planner: Planner) -> None:
    case = traffic()
    waiting = Case(case.query, {**case.outlooks, "50": sure(TABLE_5["50"], wait=0.02)}, case.branches)
    assert picked(planner, case, 1, 0.06, frozenset((1,))) == "50"
    assert picked(planner, waiting, 1, 0.06, frozenset((1,))) == "18"


def test_where_nothing_ends_in_time_the_quickest_runs(planner: Planner) -> None:
    assert picked(planner, traffic(), 1, 0.01, frozenset((1,))) == "9"
    assert picked(planner, traffic(), 0, 0.01, OPEN) == "resnet-18"


def test_section_5_with_80_ms_better_models_follow_when_the_gate_took_20(planner: Planner) -> None:
    assert picked(planner, traffic(), 1, 0.060, frozenset((1,))) == "50"
    assert picked(planner, traffic(), 2, 0.060, frozenset((2,))) == "r50"


def test_section_5_with_80_ms_an_equal_split_plans_the_smaller_models() -> None:
    planner, case = PLANNERS["equal"](), traffic()
    assert [picked(planner, case, node, 0.080, OPEN) for node in range(3)] == ["resnet-18", "18", "r18"]
    assert planner.pick(case.view(0.080, OPEN), 1).budget == pytest.approx(0.040)


def test_with_80_ms_the_expected_accuracy_is_higher_with_a_better_gate_and_smaller_models_behind_it() -> None:
    planner, case = PLANNERS["expected"](), traffic()
    assert [picked(planner, case, node, 0.080, OPEN) for node in range(3)] == ["resnet-50", "9", "r18"]


def test_a_gate_that_may_be_left_early_is_worth_a_risk_that_its_whole_time_is_not() -> None:
    case = traffic()
    caches = {"resnet-50": early(TABLE_5["resnet-50"], (0.2, 0.5), 0.98)}
    risky = Case(case.query, {**case.outlooks, **caches}, case.branches)
    planner = PLANNERS["expected"]()
    assert picked(planner, case, 0, 0.068, OPEN) == "resnet-34"
    assert picked(planner, risky, 0, 0.068, OPEN) == "resnet-50"


def picks(name: str) -> tuple[int, float]:
    """What is picked for random graphs with joins and conditions while waits move, as a sum by place, and budgets."""
    random, options, budgets = Random(5), list[int](), 0.0
    for _ in range(60):
        outlooks = random_case(random, (0, 0, 0, 0), guarded=False, options=3).outlooks
        nodes = []
        for number in range(5):
            after = tuple(sorted(random.sample(range(number), min(number, random.randint(0, 2)))))
            needs = (after,) if after and random.random() < 0.3 else tuple((one,) for one in after)
            models = tuple(f"{number}-{option}" for option in range(3))
            shares = tuple(random.sample((0.6, 0.8, 0.9, 0.9, 0.97), 3))
            nodes.append(Node(f"{number}", models, shares, after, needs, bool(after) and random.random() < 0.5))
        planner, branches, of = PLANNERS[name](), Branches(), query(*nodes)
        guarded = [number for number, node in enumerate(nodes) if node.guarded]
        for _ in range(12):
            waits = {model: random.choice((0.0, 0.02, 0.3)) for model in outlooks}
            now = {model: Outlook(waits[model], one.ends, one.chances) for model, one in outlooks.items()}
            first = random.randint(0, 3)
            opened = frozenset(range(first, 5))
            view = Case(of, now, branches).view(random.uniform(0.2, 3.0), opened)
            choice = planner.pick(view, random.choice((first, first + 1)))
            options.append(choice.option)
            budgets += choice.budget
            for number in guarded:
                branches.observe((number,), (random.random() < 0.2,))
    return sum(place * option for place, option in enumerate(options)), round(budgets, 6)


def test_what_is_picked_for_random_graphs_is_the_same_as_ever() -> None:
    """Golden: whoever means to change what planners pick changes these."""
    assert picks("equal") == (250879, 786.578115)
    assert picks("proportional") == (250950, 782.441648)
    assert picks("expected") == (248824, 831.562022)
