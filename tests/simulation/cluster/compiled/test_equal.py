"""Compiled or not, each request ends alike: the same outcome, on the same machine, at the same time to 1e-9 s."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latebind.simulation.cluster import exact
from latebind.simulation.cluster.compiled import state
from latebind.simulation.cluster.compiled.run import play
from latebind.simulation.cluster.fleet import Fleet, Played, Requests
from latebind.simulation.cluster.policies import ROUTERS, Demand, Placement
from tests.simulation.cluster.compiled.worlds import random_faults, random_fleet, random_requests

pytestmark = pytest.mark.timeout(900)  # who comes first compiles: minutes on a busy machine

SEEDS = st.integers(0, 1 << 32)


class Shuffled:
    """A placer that gives each model one to three machines, others each time, and keeps what it was told."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self.told: list[Demand] = []

    def place(self, fleet: Fleet, up: Sequence[int], demand: Demand, now: float) -> Placement | None:
        self.told.append(demand)
        if self._random.random() < 0.3 or not up:
            return None
        homes = [self._random.sample(up, min(len(up), self._random.randint(1, 3))) for _ in fleet.models]
        return Placement(tuple(map(tuple, homes)))


class Restless:
    """An autoscaler that wants another number of machines each time."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        return self._random.randint(0, len(fleet.machines) + 1)


def require_equal(one: Played, other: Played) -> None:
    assert one.outcome.tolist() == other.outcome.tolist()
    assert one.machine.tolist() == other.machine.tolist()
    assert np.abs(one.ended - other.ended).max() <= 1e-9
    assert one.marks.tolist() == other.marks.tolist()
    assert one.started.tolist() == other.started.tolist()
    assert one.loads == other.loads
    assert np.allclose([one.loaded, *one.busy], [other.loaded, *other.busy])


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_one_machine_answers_as_its_scheduler_does(seed: int) -> None:
    random = Random(seed)
    fleet = random_fleet(random, machines=1)
    requests = random_requests(random, fleet, 200)
    require_equal(play(fleet, requests, seed=seed), exact.play(fleet, requests, seed=seed))


@settings(max_examples=20, deadline=None)
@given(seed=SEEDS, exits=st.booleans())
@example(seed=12, exits=True)  # worlds in which a batch would be split between two lookups
@example(seed=17, exits=True)
@example(seed=366, exits=True)  # an exit at which so few leave that nobody is expected to
@example(seed=544, exits=False)  # a model that comes as a whole, and could be trimmed
def test_stages_with_and_without_learned_caches_run_as_they_do_there(seed: int, exits: bool) -> None:
    random = Random(seed)
    fleet = random_fleet(random, machines=1, stages=6, exits=exits)
    requests = random_requests(random, fleet, 150)
    require_equal(play(fleet, requests, seed=seed), exact.play(fleet, requests, seed=seed))


def several(seed: int, least: int) -> tuple[Random, Fleet, Requests]:
    """Return a fleet of `least` machines or more, requests for it, and what has drawn both."""
    random = Random(seed)
    fleet = random_fleet(random, machines=random.randint(least, 6))
    return random, fleet, random_requests(random, fleet, 250)


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from(ROUTERS))
def test_several_machines_get_the_same_requests(seed: int, router: str) -> None:
    _, fleet, requests = several(seed, 2)
    require_equal(
        play(fleet, requests, router=router, seed=seed), exact.play(fleet, requests, router=router, seed=seed)
    )


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.sampled_from(ROUTERS))
def test_deaths_scaling_and_placement_make_no_difference(seed: int, router: str) -> None:
    random = Random(seed)
    fleet = random_fleet(random, machines=random.randint(2, 6), stages=2, exits=True)
    requests = random_requests(random, fleet, 250)
    fleet = replace(fleet, faults=random_faults(random, fleet, requests))
    period = float(requests.times[-1]) / random.randint(2, 8)
    found = []
    for one in (play, exact.play):
        placer = Shuffled(seed)
        played = one(fleet, requests, router=router, placer=placer, autoscaler=Restless(seed), period=period, seed=seed)
        found.append((played, placer.told))
    (fast, told), (slow, told_there) = found
    require_equal(fast, slow)
    for here, there in zip(told, told_there, strict=True):
        assert here.rates.tolist() == there.rates.tolist()
        assert np.allclose([here.late, here.slack], [there.late, there.slack])


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.sampled_from(ROUTERS))
def test_machines_that_take_their_time_to_come_up_get_the_same_requests(seed: int, router: str) -> None:
    random, fleet, requests = several(seed, 3)
    period = float(requests.times[-1]) / 10.9
    startups = {kind: random.uniform(0.0, 2.5) * period for kind in fleet.machines}
    machines = tuple([replace(kind, startup=startups[kind]) for kind in fleet.machines])
    fleet = replace(fleet, machines=machines, faults=random_faults(random, fleet, requests))
    one, other = (
        each(fleet, requests, router=router, autoscaler=Restless(seed), period=period, seed=seed)
        for each in (play, exact.play)
    )
    require_equal(one, other)


@pytest.mark.parametrize("seed", range(8))
def test_pools_that_are_too_small_grow(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "ROOM", 16)
    random = Random(seed)
    fleet = random_fleet(random, machines=4)
    fleet = replace(fleet, residency=msgspec.structs.replace(fleet.residency, policy="iam", stages=False))
    requests = random_requests(random, fleet, 250)
    require_equal(play(fleet, requests, seed=seed), exact.play(fleet, requests, seed=seed))
