"""The ingress and a plan place models alike: what a plan says of placement holds for the cluster that is started."""

from random import Random

import numpy as np
import pytest

from latebind.cluster.homes import BUDGET, MODELS, PERIOD, Homes
from latebind.simulation.cluster.fleet import Fleet
from latebind.simulation.cluster.placement import ByImportance, machines_of, models_of
from latebind.simulation.cluster.policies import Demand
from latebind.simulation.cluster.tables import tables_of
from tests.simulation.cluster.fleets import fleet, model

ALLOWED = 0.2


def random_fleet(random: Random) -> Fleet:
    """Up to six machines and thirty models, which fit into the memory or do not."""
    models = [
        model(
            f"{number:02}",
            size=2 * random.randint(20, 300),
            load=random.uniform(0.01, 0.5),
            seconds=random.uniform(0.001, 0.02),
            allowed=ALLOWED,
        )
        for number in range(random.randint(1, 30))
    ]
    return fleet(random.randint(1, 6), *models, memory=random.randint(600, 3000), workers=random.randint(1, 3))


def told_by_replicas(some: Fleet, up: list[int]) -> list[tuple[str, dict[str, object]]]:
    """Return what replicas of this fleet report, with nothing in memory."""
    demand = Demand(np.zeros(len(some.models)), 0.0, 1.0)
    models, machines = models_of(some, demand), machines_of(some, tables_of(some), up)
    work = machines.work[0] * some.machines[0].workers
    costs = {
        one.served.spec.name: (0, *row)
        for one, row in zip(some.models, zip(models.sizes, models.loads, work, strict=True), strict=True)
    }
    return [(str(machine), {BUDGET: some.machines[machine].memory, MODELS: costs}) for machine in up]


@pytest.mark.parametrize("seed", range(100))
def test_an_ingress_has_the_homes_that_are_planned(seed: int) -> None:
    random = Random(seed)
    some = random_fleet(random)
    names = [one.served.spec.name for one in some.models]
    planner, homes = ByImportance(), Homes(allowed=ALLOWED, workers=some.machines[0].workers)
    homes.settle(told_by_replicas(some, list(range(len(some.machines)))), 0.0)
    planned = planner.place(some, range(len(some.machines)), Demand(np.zeros(len(names)), 0.0, 1.0), 0.0)
    assert planned is not None
    now = planned.homes
    for period in range(1, 4):
        calls = [random.choice((0, 1, 5, random.randint(0, 400))) for _ in names]
        up = sorted(random.sample(range(len(some.machines)), random.randint(1, len(some.machines))))
        for name, count in zip(names, calls, strict=True):
            for _ in range(count):
                homes.note(name)
        homes.settle(told_by_replicas(some, up), period * PERIOD)
        placed = planner.place(some, up, Demand(np.array(calls) / PERIOD, 0.0, 1.0), period * PERIOD)
        now = now if placed is None else placed.homes
        assert {name: homes.of[name] for name in names} == {
            name: tuple(map(str, places)) for name, places in zip(names, now, strict=True)
        }


def test_a_replica_that_has_a_model_in_memory_is_its_first_home() -> None:
    some = fleet(3, model("a"), memory=1000)
    told = told_by_replicas(some, [0, 1, 2])
    has = {**told[2][1], MODELS: {"a": (100, 100, 0.02, 0.006)}}
    homes = Homes(allowed=ALLOWED, workers=1)
    homes.settle([told[0], told[1], (told[2][0], has)], 0.0)
    assert homes.of == {"a": ("2",)}
