"""Where models belong: what matters most has a place, what is asked for much has several, and few move."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.cluster.placement import Costs, Placement, Report

Homes = dict[str, tuple[str, ...]]


def replicas(count: int, models: int, *, memory: int = 1000, resident: tuple[str, ...] = ()) -> dict[str, Report]:
    """Replicas that each serve models of 100 bytes, of which a request takes 4 ms; a load is 20 ms, 200 are allowed."""
    costs = {f"net-{i}": Costs(100, 0.02, 0.004, 0.2) for i in range(models)}
    return {f"r{i}": Report(memory, costs, resident if i == count - 1 else ()) for i in range(count)}


def rates(*some: float) -> dict[str, float]:
    return {f"net-{i}": rate for i, rate in enumerate(some)}


def test_models_that_nobody_knows_yet_are_spread_evenly() -> None:
    found = Placement().place(replicas(4, 12), {})
    assert [sum((f"r{i}",) == one for one in found.values()) for i in range(4)] == [3, 3, 3, 3]
    found = Placement().place(replicas(3, 1, resident=("net-0",)), {})
    assert found == {"net-0": ("r2",)}, "it is there already"


def test_a_model_that_needs_more_than_a_replica_can_bear_has_several_homes() -> None:
    found = Placement().place(replicas(4, 2), rates(300.0, 1.0))
    assert len(set(found["net-0"])) == 3, "4 ms of each request, half a replica at most for one model"
    assert len(found["net-1"]) == 1


def test_what_matters_most_has_a_place_and_the_rest_is_spread_by_bytes() -> None:
    # Two replicas with a place for two models each, and six models.
    found = Placement().place(replicas(2, 6, memory=240), rates(1.0, 5.0, 1.0, 5.0, 5.0, 5.0))
    assert sorted(found[f"net-{i}"][0] for i in (1, 3, 4, 5)) == ["r0", "r0", "r1", "r1"]
    assert sorted([found["net-0"][0], found["net-2"][0]]) == ["r0", "r1"]


@pytest.mark.parametrize("again", [rates(*[float(i) for i in range(20)]), None])
def test_nothing_moves_while_the_rates_are_the_same_or_nothing_new_is_known(again: dict[str, float] | None) -> None:
    placement, some = Placement(), replicas(4, 20)
    found = placement.place(some, rates(*[float(i) for i in range(20)]))
    assert placement.place(some, again) == found


def test_only_models_of_a_replica_that_is_gone_move() -> None:
    placement, some = Placement(), replicas(5, 20)
    before = placement.place(some, rates(*[1.0] * 20))
    after = placement.place({name: report for name, report in some.items() if name != "r2"}, None)
    assert {name: homes for name, homes in after.items() if before[name] != ("r2",)} == {
        name: homes for name, homes in before.items() if homes != ("r2",)
    }
    assert ("r2",) not in after.values()


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.floats(0.0, 400.0), min_size=1, max_size=25),
    st.lists(st.floats(0.0, 400.0), min_size=25, max_size=25),
    st.integers(150, 1500),
)
def test_every_model_has_homes_that_are_up_each_once(
    count: int, first: list[float], later: list[float], memory: int
) -> None:
    placement, some = Placement(), replicas(count, len(first), memory=memory)
    up = dict(list(some.items())[: max(1, count - 1)])
    for among, asked in ((some, first), (up, later[: len(first)])):
        found = placement.place(among, rates(*asked))
        assert len(found) == len(first)
        assert all(one and set(one) <= set(among) and len(set(one)) == len(one) for one in found.values())
