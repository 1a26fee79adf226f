"""The price that is found where none is given: what caches earn is divided between accuracy and latency."""

from math import inf
from random import Random

import pytest
from msgspec.structs import replace

from latebind.domain.costs import Outlook
from latebind.domain.query import Node, PlannerConfig
from latebind.queries.expected import MOST_NODES, SELDOM, Expected
from latebind.queries.planners import Choice, PlanView
from latebind.queries.prospect import Branches
from tests.queries.plans import Case, early, played, query, random_case, sure

TINY = 1e-6  # a price that decides nothing, so that seconds are told


class Allowed:
    """A planner that is told what the query was allowed."""

    def __init__(self, seconds: float, price: float | None = None, *, replan: bool = True) -> None:
        self._planner = Expected(PlannerConfig(price=price, replan=replan))
        self._seconds = seconds

    def pick(self, view: PlanView, node: int) -> Choice:
        return self._planner.pick(replace(view, allowed=self._seconds), node)


def reached(case: Case, allowed: float, price: float | None) -> tuple[float, float]:
    """Return the chance to be right in time, and the seconds."""
    found = played(case, Allowed(allowed, price), allowed, TINY)
    return found.right, found.cost / TINY


def gains(case: Case, allowed: float, price: float | None) -> tuple[float, float]:
    """Return how much better accuracy and time are than planned beforehand, with every network run to its end."""
    whole = {model: sure(found.whole, found.wait) for model, found in case.outlooks.items()}
    static = reached(Case(case.query, whole, case.branches), allowed, 0.0)
    mine = reached(case, allowed, price)
    return mine[0] - static[0], static[1] - mine[1]


def product(case: Case, allowed: float, price: float | None) -> float:
    right, seconds = gains(case, allowed, price)
    return max(0.0, right) * max(0.0, seconds)


def some(count: int) -> list[tuple[Case, float]]:
    """Gates with two branches, models that are left early and for which nobody waits, and a time for each."""
    random, found = Random(3), []
    for _ in range(count):
        case = random_case(random, (0, 0), guarded=True, options=3, ends=3)
        outlooks = {model: Outlook(0.0, one.ends, one.chances) for model, one in case.outlooks.items()}
        found.append((Case(case.query, outlooks, case.branches), random.uniform(0.6, 2.0)))
    return found


def test_accuracy_is_never_below_that_of_a_plan_made_beforehand() -> None:
    found = [gains(case, allowed, None) for case, allowed in some(40)]
    assert all(right > -1e-5 for right, _ in found)
    assert sum(right > 0.005 and seconds > 0.005 for right, seconds in found) > 10


def test_no_other_price_gains_more_of_both() -> None:
    for case, allowed in some(20):
        best = max(product(case, allowed, 2.0**place) for place in range(-10, 6))
        assert product(case, allowed, None) >= 0.9 * best - 1e-9


def test_what_is_not_earned_is_not_given_away() -> None:
    """Without learned caches a plan made beforehand is as good, and nothing may be taken from its accuracy."""
    for one, allowed in some(20):
        case = Case(one.query, {model: sure(found.whole) for model, found in one.outlooks.items()}, one.branches)
        assert reached(case, allowed, None)[0] == pytest.approx(reached(case, allowed, 0.0)[0], abs=1e-5)


def picked(case: Case, planner: Allowed, allowed: float) -> list[int]:
    view = case.view(allowed, frozenset(range(len(case.query.nodes))))
    return [planner.pick(view, node).option for node in sorted(view.open)]


def test_accuracy_alone_counts_where_a_price_cannot_be_found() -> None:
    """Planned beforehand, or where nobody knows what was allowed, or of a query with many nodes."""
    for case, allowed in some(20):
        accurate = picked(case, Allowed(allowed, 0.0), allowed)
        assert picked(case, Allowed(allowed, replan=False), allowed) == accurate
        assert picked(case, Allowed(0.0), allowed) == picked(case, Allowed(inf), allowed) == accurate
    nodes = [Node("0", ("0-a",), (0.9,))]
    nodes += [Node(f"{i}", (f"{i}-a", f"{i}-b"), (0.8, 0.9), (i - 1,), ((i - 1,),)) for i in range(1, MOST_NODES + 1)]
    outlooks = {model: early(0.1, (0.1,), 0.9) for node in nodes for model in node.models}
    many = Case(query(*nodes), outlooks, Branches())
    assert picked(many, Allowed(1.0), 1.0) == picked(many, Allowed(1.0, 0.0), 1.0)


def test_a_price_is_found_anew_after_some_queries() -> None:
    planner = Expected(PlannerConfig())
    case, allowed = some(1)[0]
    slower = {m: Outlook(0.0, tuple(2 * end for end in one.ends), one.chances) for m, one in case.outlooks.items()}

    def price(outlooks: dict[str, Outlook]) -> float:
        view = Case(case.query, outlooks, case.branches).view(allowed, frozenset(range(3)))
        planner.pick(replace(view, allowed=allowed), 0)
        assert planner._bargain is not None
        return planner._bargain.price(allowed)

    first = price(dict(case.outlooks))
    found = [price(slower) for _ in range(SELDOM)]
    assert found[0] == first  # as long as it was found for the models as they were
    assert found[-1] != first
