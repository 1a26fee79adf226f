"""The least time that a query takes is no more than it may turn out to be."""

from collections.abc import Mapping

import pytest

from latebind.domain.actions import Map, Outcome, Reply
from latebind.domain.costs import Outlook
from latebind.domain.events import Arrived
from latebind.domain.query import Node
from latebind.queries.live import least_seconds, steps_that_run
from latebind.queries.scheduler import make_scheduler
from tests.models import served
from tests.queries import graphs
from tests.queries.graphs import node
from tests.queries.plans import sure

CHAIN = (node("first", "one"), node("second", "two", after=[0]), node("third", "one", after=[1]))


def least(*nodes: Node, outlooks: Mapping[str, Outlook], after: int = -1) -> float:
    """Return the least seconds of these nodes, or of those after one of them, where nothing is waited for."""
    steps = steps_that_run(nodes, range(after + 1, len(nodes)))
    return least_seconds(nodes, steps, outlooks, waiting=after < 0)


ONE_OR_TWO = {"one": sure(0.01, 0.5), "two": sure(0.2), "three": sure(0.4)}
SIDES = {"one": sure(0.01, 0.1), "two": sure(0.3, 0.1)}


@pytest.mark.parametrize(
    ("nodes", "outlooks", "seconds"),
    [
        (CHAIN, {"one": sure(0.01, 0.1), "two": sure(0.01, 0.1)}, 0.13),  # what is waited for passes once along a path
        (CHAIN, {"one": sure(0.2), "two": sure(0.01, 0.1)}, 0.41),  # a later model is waited for while others run
        (CHAIN, {"one": sure(0.2), "two": sure(0.01, 0.5)}, 0.71),
        ((node("first", "one", "two"),), ONE_OR_TWO, 0.2),  # a model that takes longer may end first
        ((node("first", "three"), node("second", "one", "two", after=[0])), ONE_OR_TWO, 0.51),
        ((node("first", "two", guarded=True), node("second", "one", after=[0])), SIDES, 0.11),  # it may be left out
        ((node("left", "one"), node("right", "two"), node("join", "one", after=[0, 1])), SIDES, 0.41),
    ],
)
def test_a_query_takes_at_least_its_longest_path_by_its_quickest_models(
    nodes: tuple[Node, ...], outlooks: Mapping[str, Outlook], seconds: float
) -> None:
    assert least(*nodes, outlooks=outlooks) == pytest.approx(seconds)


def test_after_a_step_nothing_is_waited_for_and_first_exits_count() -> None:
    outlooks = {"one": Outlook(0.1, (0.02, 1.0), (0.5, 0.5)), "two": sure(0.3, 0.1)}
    assert least(*CHAIN, after=0, outlooks=outlooks) == pytest.approx(0.32)
    assert least(*CHAIN, after=2, outlooks=outlooks) == 0.0


def test_a_query_that_can_be_in_time_behind_what_runs_is_not_refused() -> None:
    chain = graphs.query(*[node(str(i), "small", after=[i - 1] if i else []) for i in range(3)])  # 30 ms at least
    scheduler = make_scheduler(graphs.config(served("small", stages=1), served("large", stages=10), queries=[chain]))
    scheduler.handle(Arrived("large", 9.0, (1,), (0,)), 0.0)  # for 100 ms
    (accepted,) = scheduler.handle(Arrived("query", 0.14, (10,), (0,)), 0.0)
    assert isinstance(accepted, Map)
    (late,) = scheduler.handle(Arrived("query", 0.12, (20,), (1,)), 0.0)
    assert isinstance(late, Reply)
    assert late.outcome is Outcome.REFUSED_LATE
