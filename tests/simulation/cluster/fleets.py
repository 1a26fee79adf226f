"""Small fleets and the requests that come to them, which the tests of clusters share."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from latebind.domain.costs import Footprint
from latebind.simulation.cluster.fleet import ClusterModel, Fleet, MachineKind, Requests
from tests.models import served


def model(name: str, *, size: int = 100, load: float = 0.02, allowed: float = 0.2, **shape: Any) -> ClusterModel:
    """A model of `size` bytes in equal stages that takes `load` seconds to be there."""
    one = served(name, **{"seconds": 0.005, "per_row": 0.001, "stages": 2, **shape})
    stages = one.spec.stages
    footprint = Footprint((size // stages,) * stages, (load / stages,) * stages)
    return ClusterModel(replace(one, footprint=footprint), allowed)


def fleet(
    machines: int = 2,
    *models: ClusterModel,
    memory: int = 1000,
    workers: int = 1,
    speed: float = 1.0,
    **settings: Any,
) -> Fleet:
    """So many machines of one kind, by default with three models, of which all fit."""
    some = models or tuple([model(f"model-{i}") for i in range(3)])
    return Fleet(MachineKind("plain", memory, workers=workers, speed=speed), machines, some, **settings)


def random_fleet(random: Random) -> Fleet:
    """Up to six machines and thirty models, which fit into the memory or do not; one machine may be lost."""
    models = [
        model(
            f"{number:02}",
            size=2 * random.randint(20, 300),
            load=random.uniform(0.01, 0.5),
            seconds=random.uniform(0.001, 0.02),
        )
        for number in range(random.randint(1, 30))
    ]
    machines = random.randint(1, 6)
    losses = ((random.uniform(0.0, 20.0), random.randrange(machines)),) if random.random() < 0.3 else ()
    memory, workers = random.randint(600, 3000), random.randint(1, 3)
    return fleet(machines, *models, memory=memory, workers=workers, losses=losses)


def requests(*coming: tuple[float, int], leaves: int = 1) -> Requests:
    """Requests at such times for such models, which leave after stage `leaves`."""
    return Requests(
        np.array([time for time, _ in coming], dtype=np.float64),
        np.array([number for _, number in coming], dtype=np.int32),
        np.full(len(coming), leaves, dtype=np.int16),
        np.zeros(len(coming), dtype=np.int32),
    )


def poisson(count: int, *, rate: float, models: int = 3, stages: int = 2, seed: int = 0) -> Requests:
    """`count` requests at `rate` a second, each for any model, which leave after any stage."""
    random = np.random.default_rng(seed)
    return Requests(
        np.cumsum(random.exponential(1.0 / rate, count)),
        random.integers(0, models, count).astype(np.int32),
        random.integers(0, stages, count).astype(np.int16),
        np.zeros(count, dtype=np.int32),
    )
