"""Where models belong: who matters most has a place, who is asked for much has several, and few move."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.placement import ByImportance, RandomHomes
from latebind.simulation.cluster.policies import Demand, Placement
from tests.simulation.cluster.fleets import fleet, model

Homes = tuple[tuple[int, ...], ...]


def demand(*rates: float) -> Demand:
    return Demand(np.array(rates), late=0.0, slack=1.0)


def homes(placement: Placement | None) -> Homes:
    assert placement is not None
    return placement.homes


def alike(machines: int, models: int, *, memory: int = 1000) -> Fleet:
    """Models of 100 bytes, of which a machine has a place for all but 15 % of its memory."""
    return fleet(machines, *[model(f"net-{i}") for i in range(models)], memory=memory)


def test_models_that_nobody_knows_yet_are_spread_evenly() -> None:
    found = homes(ByImportance().place(alike(4, 12), range(4), demand(*[0.0] * 12), 0.0))
    assert [sum((machine,) == one for one in found) for machine in range(4)] == [3, 3, 3, 3]


def test_who_needs_more_than_a_machine_can_bear_has_several_homes() -> None:
    placed = ByImportance().place(alike(4, 2), range(4), demand(300.0, 1.0), 0.0)
    popular, other = homes(placed)
    assert len(popular) == 3, "4 ms of each full batch of a request, half a machine at most for one model"
    assert len(set(popular)) == 3
    assert len(other) == 1


def test_what_matters_most_has_a_place_and_the_rest_is_spread_by_bytes() -> None:
    # Two machines with a place for two models each, and six models.
    rates = [1.0, 5.0, 1.0, 5.0, 5.0, 5.0]
    found = homes(ByImportance().place(alike(2, 6, memory=240), range(2), demand(*rates), 0.0))
    important = [found[i][0] for i in (1, 3, 4, 5)]
    assert sorted(important) == [0, 0, 1, 1]
    assert sorted([found[0][0], found[2][0]]) == [0, 1]


def test_nothing_moves_while_the_rates_are_the_same() -> None:
    placer, some = ByImportance(), alike(4, 20)
    rates = demand(*[float(i) for i in range(20)])
    assert placer.place(some, range(4), rates, 0.0) is not None
    assert placer.place(some, range(4), rates, 60.0) is None


def test_only_models_of_a_machine_that_is_gone_move() -> None:
    placer, some = ByImportance(), alike(5, 20)
    rates = demand(*[1.0] * 20)
    before = homes(placer.place(some, range(5), rates, 0.0))
    after = homes(placer.place(some, (0, 1, 3, 4), rates, 60.0))
    assert [now for was, now in zip(before, after, strict=True) if was != (2,)] == [
        was for was in before if was != (2,)
    ]
    assert all(now != (2,) for now in after)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 6),
    st.lists(st.floats(0.0, 400.0), min_size=1, max_size=25),
    st.lists(st.floats(0.0, 400.0), min_size=25, max_size=25),
    st.integers(150, 1500),
)
def test_every_model_has_homes_that_are_up_each_once(
    machines: int, rates: list[float], later: list[float], memory: int
) -> None:
    placer, some = ByImportance(), alike(machines, len(rates), memory=memory)
    found = homes(placer.place(some, range(machines), demand(*rates), 0.0))
    up = range(machines - 1) if machines > 1 else range(machines)
    again = placer.place(some, up, demand(*later[: len(rates)]), 60.0)
    for placed, among in ((found, range(machines)), (found if again is None else again.homes, up)):
        assert len(placed) == len(rates)
        assert all(one and set(one) <= set(among) and len(set(one)) == len(one) for one in placed)


@settings(max_examples=25, deadline=None)
@given(st.integers(2, 6), st.lists(st.floats(0.0, 60.0), min_size=2, max_size=25))
def test_few_models_move_where_rates_change_a_little(machines: int, rates: list[float]) -> None:
    placer, some = ByImportance(), alike(machines, len(rates), memory=800)
    before = homes(placer.place(some, range(machines), demand(*rates), 0.0))
    after = placer.place(some, range(machines), demand(*[1.02 * rate for rate in rates]), 60.0)
    moved = 0 if after is None else sum(a != b for a, b in zip(before, after.homes, strict=True))
    assert moved <= max(1, len(rates) // 4)


def test_random_homes_stay_where_other_machines_go() -> None:
    placer, some = RandomHomes(2), alike(6, 30)
    before = homes(placer.place(some, range(6), demand(*[0.0] * 30), 0.0))
    assert placer.place(some, range(6), demand(*[1.0] * 30), 60.0) is None
    after = homes(placer.place(some, (0, 1, 2, 4, 5), demand(*[0.0] * 30), 120.0))
    assert all(was == now for was, now in zip(before, after, strict=True) if 3 not in was)
    assert {machine for one in before for machine in one} == set(range(6))
    assert all(len(set(one)) == 2 for one in after)


def test_a_model_has_one_random_home_at_least() -> None:
    with pytest.raises(ConfigError, match="0 homes: give 1 or more"):
        RandomHomes(0)


def test_machines_are_set_aside_for_those_without_a_place() -> None:
    # Ten machines with room for two models each, and thirty models.
    rates = [20.0] * 18 + [1.0] * 12
    found = homes(ByImportance().place(alike(10, 30, memory=200), range(10), demand(*rates), 0.0))
    assert sorted(found[:18]) == sorted([(machine,) for machine in range(9)] * 2)
    assert found[18:] == ((9,),) * 12


def test_who_has_a_place_keeps_it_where_another_is_asked_for_hardly_more() -> None:
    placer, some = ByImportance(), alike(10, 30, memory=200)
    before = homes(placer.place(some, range(10), demand(*[20.0] * 18, *[19.0] * 12), 0.0))
    assert placer.place(some, range(10), demand(*[19.0] * 18, *[20.0] * 12), 60.0) is None
    later = homes(placer.place(some, range(10), demand(*[1.0] * 18, *[60.0] * 12), 120.0))
    assert all(one == (9,) for one in before[18:])
    assert all(one != (9,) for one in later[18:])
