"""A simulated cluster: one machine is the simulator; its decisions are those of the running application."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from latebind.cluster.fleet import Fleet as RunningFleet
from latebind.cluster.placement import Report
from latebind.cluster.routing import Replica, Router
from latebind.cluster.upstream import ReplicaInfo
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig, ResidencyConfig
from latebind.domain.errors import Refused, Unavailable
from latebind.server.limits import Limits
from latebind.simulation.cluster.fleet import UNKNOWN, Fleet, Played, Requests
from latebind.simulation.cluster.play import play
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from tests.simulation.cluster.fleets import fleet, model, poisson, random_fleet, requests

ANSWERED, FAILED, REFUSED_LOADING = Outcome.ANSWERED.value, Outcome.FAILED.value, Outcome.REFUSED_LOADING.value
MOST = 4  # calls that a replica takes at once: few, so that the bound matters


@dataclass(frozen=True)
class Seen:
    """What the router of a plan was told, and the homes that it found."""

    now: float
    reports: dict[str, Report]
    homes: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Chosen:
    """A request that it routed, with the calls that each machine had under way, and the machine that it chose."""

    now: float
    model: str
    under_way: dict[str, int]
    machine: str | None


class Recorded(Router):
    """The router of a plan, which records all that it is told and all that it decides."""

    def __init__(self) -> None:
        super().__init__(most=MOST)
        self.log: list[Seen | Chosen] = []

    def see(self, replicas: Iterable[Replica], now: float) -> None:
        some = list(replicas)
        super().see(some, now)
        reports = {one.name: one.report for one in some if one.report is not None}
        self.log.append(Seen(now, reports, {name: tuple(homes) for name, homes in self.homes.items()}))

    def choose(self, model: str, now: float, tried: Collection[str] = ()) -> Replica | None:
        under_way = {name: one.under_way for name, one in self.replicas.items()}
        found = super().choose(model, now, tried)
        self.log.append(Chosen(now, model, under_way, None if found is None else found.name))
        return found


@pytest.mark.parametrize("seed", range(100))
def test_the_running_application_places_models_and_routes_calls_as_the_plan_does(seed: int) -> None:
    """A plan's fleet is played; then the same reports and calls come to what the ingress of `serve --on ray` has."""
    random = Random(seed)
    planned, recorded = random_fleet(random), Recorded()
    play(
        planned, poisson(200, rate=random.choice((5, 20, 200)), models=len(planned.models), seed=seed), router=recorded
    )
    now = 0.0
    running = RunningFleet(most=MOST, limits=Limits(), secret="s", clock=lambda: now)
    for one in recorded.log:
        now = one.now
        if isinstance(one, Seen):
            running.see([ReplicaInfo(name, "127.0.0.1", 1, report) for name, report in one.reports.items()])
            assert running.router.homes == one.homes
            continue
        for peer in running.peers:
            peer.under_way = one.under_way[peer.name]
        try:
            assert running.choose(one.model).name == one.machine
        except (Refused, Unavailable):
            assert one.machine is None
    assert any(isinstance(one, Seen) and any(one.homes.values()) for one in recorded.log)


def simulated(alone: Fleet, coming: Requests) -> list[tuple[float, int]]:
    """What the simulator of one machine makes of the same requests, in their order."""
    arrivals = [
        Arrival(time, alone.models[number].served.spec.name, alone.models[number].allowed, leaves)
        for time, number, leaves in zip(
            coming.times.tolist(), coming.models.tolist(), coming.leaves.tolist(), strict=True
        )
    ]
    records = Simulator(alone.scheduler_config()).run(arrivals)
    return [(one.ended, one.outcome.value) for one in sorted(records, key=lambda one: one.request)]


def outcomes(played: Played) -> list[tuple[float, int]]:
    return list(zip(played.ended.tolist(), played.outcome.tolist(), strict=True))


@pytest.mark.parametrize(
    ("workers", "speed", "settings"),
    [
        (1, 1.0, {}),
        (3, 2.0, {}),
        (1, 1.0, {"residency": ResidencyConfig(policy="lru", stages=False), "policy": PolicyConfig("graph")}),
    ],
)
def test_one_machine_is_the_simulator(workers: int, speed: float, settings: dict[str, Any]) -> None:
    alone = fleet(1, memory=250, workers=workers, speed=speed, **settings)
    coming = poisson(800, rate=500 * workers * speed)
    played = play(alone, coming)
    assert outcomes(played) == simulated(alone, coming)
    assert len(set(played.outcome.tolist())) > 1, "some are too many"
    assert played.loads >= 3, "there is room for five stages of six"


def test_losses_of_machines_lose_no_request() -> None:
    coming = poisson(700, rate=300)
    played = play(fleet(3, memory=250, losses=((0.5, 0), (0.7, 1), (1.5, 2))), coming)
    assert np.all(played.outcome >= 0)
    assert np.all(played.ended >= coming.times)
    dead = coming.times > 1.5
    assert set(played.outcome[dead].tolist()) == {FAILED}, "all three are lost"
    assert set(played.machine[dead].tolist()) == {-1}


def test_what_a_lost_machine_had_is_answered_by_another() -> None:
    found = []
    for losses in ((), ((0.105, 0),)):
        pair = fleet(2, model("net"), losses=losses)
        found.append(play(pair, requests((0.1, 0), (0.3, 0))))
    before, after = found
    assert before.machine.tolist() == [0, 0], "the only home"
    assert after.machine.tolist() == [1, 1]
    assert after.outcome.tolist() == [ANSWERED, ANSWERED]
    assert after.ended[0] == pytest.approx(0.105 + 0.025)


def test_the_hop_is_part_of_every_answer_and_of_the_time_allowed() -> None:
    near, far = (play(fleet(1, hop=hop), requests((0.0, 0))) for hop in (0.0, 0.15))
    assert far.ended[0] == pytest.approx(near.ended[0] + 0.15)
    assert play(fleet(1, hop=0.195), requests((0.0, 0))).outcome.tolist() == [Outcome.REFUSED_LATE.value]


def test_a_model_that_loads_for_longer_than_requests_may_take_comes_because_they_are_refused() -> None:
    slow = model("slow", load=0.5)
    played = play(fleet(1, slow), requests((0.0, 0), (0.2, 0), (0.4, 0), (0.6, 0)))
    assert played.outcome.tolist() == [REFUSED_LOADING, REFUSED_LOADING, ANSWERED, ANSWERED]
    assert played.ended[2] == pytest.approx(0.51)
    assert played.busy[0] == pytest.approx(0.02), "that of the last two"
    assert played.loads == 2, "a load for each stage"


def test_a_run_ends_early_where_too_many_are_late() -> None:
    coming = poisson(2000, rate=2000)
    played = play(fleet(1), coming, warm=0.2, most_late=20)
    ended = played.outcome != UNKNOWN
    assert 20 < ended.sum() < 1500
    assert np.isnan(played.ended[~ended]).all()
