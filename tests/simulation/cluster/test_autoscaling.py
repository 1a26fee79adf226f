"""Machines by the rule that decides for Ray: more where answers are at risk, fewer where that would do."""

from dataclasses import replace

import numpy as np

from latebind.simulation.cluster.autoscaling import BySlack
from latebind.simulation.cluster.play import play
from latebind.simulation.cluster.policies import Demand
from tests.simulation.cluster.fleets import fleet, model, requests

FLEET = fleet(40, model("net"))


def demand(late: float = 0.0, slack: float = 0.4, rate: float = 1000.0) -> Demand:
    return Demand(np.array([rate]), late, slack)


def test_more_machines_once_answers_were_at_risk_for_long_enough() -> None:
    scaler = BySlack(up=2.0, down=60.0)
    assert [scaler.wanted(FLEET, 10, demand(late=0.3), now) for now in (0.0, 1.0, 2.0)] == [10, 10, 15]
    assert [scaler.wanted(FLEET, 15, demand(late=0.3), now) for now in (3.0, 5.0)] == [15, 22]


def test_risk_that_has_passed_is_forgotten() -> None:
    scaler = BySlack(up=2.0, down=60.0)
    found = [scaler.wanted(FLEET, 10, demand(slack=slack), now) for slack, now in ((0.1, 0.0), (0.4, 1.0), (0.1, 2.0))]
    assert found == [10, 10, 10]


def test_one_fewer_where_that_would_have_done_and_none_where_machines_are_busy() -> None:
    # 4 ms of a machine for each request in batches of four: four machines all of the time
    for machines, expected in ((10, 9), (7, 7)):
        scaler = BySlack(up=2.0, down=5.0)
        assert [scaler.wanted(FLEET, machines, demand(slack=0.9), now) for now in (0.0, 5.0)] == [machines, expected]


def test_a_machine_that_starts_is_not_called_off() -> None:
    slow = replace(FLEET, machines=tuple(replace(machine, startup=3.0) for machine in FLEET.machines))
    scaler = BySlack(up=0.0, down=60.0)
    assert scaler.wanted(slow, 10, demand(slack=0.1), 0.0) == 11
    assert [scaler.wanted(slow, 10, demand(), now) for now in (1.0, 3.0)] == [11, 11]
    assert scaler.wanted(slow, 10, demand(), 4.0) == 10  # it never came


def test_a_fleet_grows_under_load_and_answers_what_comes_later() -> None:
    coming = requests(*((0.004 * number, 0) for number in range(2_000)))
    alone, scaled = (
        play(fleet(4, model("net")), coming, router="least-loaded", autoscaler=scaler, period=0.5)
        for scaler in (BySlack(up=1e9, down=0.0), BySlack(up=0.0, down=1e9))
    )
    assert scaled.started[-1] > alone.started[-1]
