"""A cluster in which every machine is a scheduler: one machine is the simulator; faults and scaling lose nobody."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, ResidencyConfig
from latebind.simulation.cluster.fleet import Fault, Fleet, Played, Requests
from latebind.simulation.cluster.play import play
from latebind.simulation.cluster.policies import ROUTERS, Demand, Placement
from latebind.simulation.cluster.tables import scheduler_config
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from tests.simulation.cluster.fleets import fleet, model, poisson, requests

ANSWERED, FAILED, REFUSED_LOADING = Outcome.ANSWERED.value, Outcome.FAILED.value, Outcome.REFUSED_LOADING.value


class Wanted:
    """An autoscaler that wants so many machines, one number at each question, and keeps what it was told."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = list(numbers)
        self.told: list[Demand] = []
        self.up: list[int] = []

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        self.told.append(demand)
        self.up.append(up)
        return self.numbers.pop(0) if len(self.numbers) > 1 else self.numbers[0]


class Homes:
    """A placer that gives the same homes once."""

    def __init__(self, *homes: tuple[int, ...]) -> None:
        self.homes = homes
        self.up: list[Sequence[int]] = []

    def place(self, fleet: Fleet, up: Sequence[int], demand: Demand, now: float) -> Placement | None:
        self.up.append(up)
        return Placement(self.homes) if len(self.up) == 1 else None


def simulated(alone: Fleet, coming: Requests) -> list[tuple[float, int]]:
    """What the simulator of one machine makes of the same requests, in their order."""
    arrivals = [
        Arrival(time, alone.models[number].served.spec.name, alone.models[number].allowed, leaves)
        for time, number, leaves in zip(
            coming.times.tolist(), coming.models.tolist(), coming.leaves.tolist(), strict=True
        )
    ]
    records = Simulator(scheduler_config(alone, alone.machines[0])).run(arrivals)
    return [(one.ended, one.outcome.value) for one in sorted(records, key=lambda one: one.request)]


def outcomes(played: Played) -> list[tuple[float, int]]:
    return list(zip(played.ended.tolist(), played.outcome.tolist(), strict=True))


@pytest.mark.parametrize(("workers", "speed"), [(1, 1.0), (3, 2.0)])
def test_one_machine_is_the_simulator(workers: int, speed: float) -> None:
    alone = fleet(1, memory=250, workers=workers, speed=speed)
    coming = poisson(800, rate=500 * workers * speed)
    played = play(alone, coming)
    assert outcomes(played) == simulated(alone, coming)
    assert len(set(played.outcome.tolist())) > 1, "some are too many"
    assert played.loads >= 5, "there is room for five stages of six"


@pytest.mark.parametrize("router", ROUTERS)
def test_one_machine_is_the_simulator_behind_any_router(router: str) -> None:
    alone, coming = fleet(1, memory=250), poisson(150, rate=500)
    assert outcomes(play(alone, coming, router=router)) == simulated(alone, coming)


@pytest.mark.parametrize("residency", ["lru", "importance", "late"])
def test_one_machine_is_the_simulator_with_any_residency(residency: str) -> None:
    settings = ResidencyConfig(policy="iam" if residency == "importance" else residency, stages=False)
    alone = fleet(1, memory=250, residency=settings, policy=PolicyConfig("graph"))
    coming = poisson(400, rate=200, seed=2)
    assert outcomes(play(alone, coming)) == simulated(alone, coming)


@pytest.mark.parametrize("router", ROUTERS)
def test_faults_lose_nobody(router: str) -> None:
    faults = (Fault(0.5, 0, 0.4), Fault(0.7, 1, 0.5), Fault(0.7, 2, 0.1), Fault(1.5, 0, 0.3), Fault(1.6, 0, 0.5))
    coming = poisson(700, rate=300)
    played = play(fleet(3, memory=250, faults=faults), coming, router=router)
    assert np.all(played.outcome >= 0)
    assert np.all(played.ended >= coming.times)
    dead = (coming.times > 0.75) & (coming.times < 0.8)
    assert set(played.outcome[dead].tolist()) == {FAILED}, "all three are away"
    assert set(played.machine[dead].tolist()) == {-1}


def test_what_a_dead_machine_had_is_answered_by_another() -> None:
    pair = fleet(2, model("net"), faults=(Fault(0.105, 0, 1.0),))
    played = play(pair, requests((0.1, 0), (0.3, 0)), router="round-robin")
    assert played.machine.tolist() == [1, 1]
    assert played.outcome.tolist() == [ANSWERED, ANSWERED]
    assert played.ended[0] == pytest.approx(0.105 + 0.025)


def test_a_machine_comes_back_with_nothing_in_memory() -> None:
    alone = fleet(1, model("net"), faults=(Fault(1.0, 0, 1.0),))
    played = play(alone, requests((0.0, 0), (0.5, 0), (1.5, 0), (2.0, 0), (3.0, 0)))
    assert played.outcome.tolist() == [ANSWERED, ANSWERED, FAILED, ANSWERED, ANSWERED]
    assert (played.ended - played.requests.times).tolist() == pytest.approx([0.025, 0.01, 0.0, 0.025, 0.01])


def test_two_faults_at_once_last_as_long_as_the_longer() -> None:
    alone = fleet(1, faults=(Fault(1.0, 0, 2.0), Fault(1.5, 0, 0.1)))
    played = play(alone, requests((2.0, 0), (3.0, 0)))
    assert played.outcome.tolist() == [FAILED, ANSWERED]


def test_the_hop_is_part_of_every_answer_and_of_the_time_allowed() -> None:
    near, far = (play(fleet(1, hop=hop), requests((0.0, 0))) for hop in (0.0, 0.15))
    assert far.ended[0] == pytest.approx(near.ended[0] + 0.15)
    assert play(fleet(1, hop=0.195), requests((0.0, 0))).outcome.tolist() == [Outcome.REFUSED_LATE.value]


def test_those_that_go_drain_and_those_that_come_are_empty() -> None:
    scaler = Wanted(1, 2)
    coming = requests((0.0, 0), (0.3, 1), (0.9999, 1), (1.001, 1), (1.2, 0), (1.3, 1), (2.2, 0), (2.3, 0))
    played = play(fleet(2), coming, router="round-robin", autoscaler=scaler, period=1.0)
    assert np.all(played.outcome == ANSWERED)
    assert played.machine.tolist() == [0, 1, 0, 0, 0, 0, 1, 0]
    assert played.started.tolist() == [2, 1, 2]
    assert played.marks.tolist() == [0.0, 1.0, 2.0]
    assert played.ended[6] - 2.2 == pytest.approx(0.025), "machine 1 has to load it again"
    assert scaler.up == [2, 1]


def slow_to_start(startup: float) -> Fleet:
    """Two machines, of which the second takes so long to come up again."""
    two = fleet(2)
    return replace(two, machines=(two.machines[0], replace(two.machines[1], startup=startup)))


def test_a_machine_that_starts_gets_nothing_until_it_is_up_and_is_paid_for_meanwhile() -> None:
    scaler = Wanted(1, 1, 2)
    coming = requests((0.0, 0), (0.3, 1), (2.5, 0), (3.2, 1), (3.9, 0), (4.3, 1), (4.6, 0), (4.9, 1), (5.1, 0))
    played = play(slow_to_start(1.5), coming, router="round-robin", autoscaler=scaler, period=1.0)
    assert np.all(played.outcome == ANSWERED)
    assert played.machine.tolist() == [0, 1, 0, 0, 0, 0, 1, 0, 1]
    assert played.started.tolist() == [2, 1, 1, 2, 2, 2]
    assert scaler.up == [2, 1, 1, 1, 2], "who starts is not up"


def test_a_machine_that_starts_is_the_first_to_go() -> None:
    coming = requests((0.0, 0), (0.3, 1), (3.5, 0), (5.5, 0), (6.5, 0))
    played = play(slow_to_start(1.5), coming, router="round-robin", autoscaler=Wanted(1, 1, 2, 1), period=1.0)
    assert played.machine.tolist() == [0, 1, 0, 0, 0]
    assert played.started.tolist() == [2, 1, 1, 2, 1, 1, 1]


def test_who_drains_answers_what_it_has_and_is_paid_for_meanwhile() -> None:
    played = play(
        fleet(2),
        requests((0.9, 0), (0.995, 1), (1.5, 0), (2.5, 0)),
        router="round-robin",
        autoscaler=Wanted(1),
        period=1.0,
    )
    assert np.all(played.outcome == ANSWERED)
    assert played.machine.tolist() == [0, 1, 0, 0]
    assert played.started.tolist() == [2, 2, 1]


def test_a_model_that_loads_for_longer_than_requests_may_take_comes_because_they_are_refused() -> None:
    slow = model("slow", load=0.5)
    played = play(fleet(1, slow), requests((0.0, 0), (0.2, 0), (0.4, 0), (0.6, 0)))
    assert played.outcome.tolist() == [REFUSED_LOADING, REFUSED_LOADING, ANSWERED, ANSWERED]
    assert played.ended[2] == pytest.approx(0.51)
    assert played.busy[0] == pytest.approx(0.02), "that of the last two"
    assert played.loads == 2, "a load for each stage"
    assert played.loaded == pytest.approx(0.5)


def test_the_demand_is_that_of_the_last_period() -> None:
    scaler = Wanted(1)
    coming = requests((0.1, 0), (0.2, 0), (0.3, 1), (1.5, 2), (2.5, 0))
    play(fleet(1, model("a"), model("b", allowed=0.02), model("c")), coming, autoscaler=scaler, period=1.0)
    first, second = scaler.told
    assert first.rates.tolist() == [2.0, 1.0, 0.0]
    assert first.late == pytest.approx(1 / 3), "b cannot be there in time"
    assert second.late == 0.0
    assert second.rates.tolist() == [0.0, 0.0, 1.0]
    assert second.slack == pytest.approx((0.2 - 0.03) / 0.2)


def test_the_placer_is_asked_at_the_start_and_at_every_tick() -> None:
    homes = Homes((1,), (0,), (0, 1))
    coming = requests(*((0.1 + 0.1 * i, i % 3) for i in range(25)))
    played = play(fleet(2), coming, placer=homes, period=1.0)
    assert homes.up == [(0, 1)] * 3
    assert played.machine[0:3].tolist() == [1, 0, 0]


def test_nothing_comes_of_no_requests() -> None:
    played = play(fleet(2), requests())
    assert len(played.outcome) == 0
    assert played.started.tolist() == [2]


def test_a_machine_that_dies_twice_without_coming_up_between_loses_its_requests_once() -> None:
    faults = (Fault(0.12, 1, 0.05), Fault(0.5, 1, 0.05))
    two = fleet(2, model("slow", seconds=0.05, allowed=2.0), faults=faults)
    coming = requests((0.0, 0), (0.05, 0), (0.11, 0))
    played = play(two, coming, router="round-robin", autoscaler=Wanted(1), period=0.1)
    assert outcomes(played)[1][1] == ANSWERED
    assert played.machine[1] == 0
    assert played.ended.max() < 0.5
