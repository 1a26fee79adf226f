"""Random fleets and requests: models of several stages with exits, memory that is short, loads up to far too much."""

from random import Random

import numpy as np

from latebind.domain.config import PolicyConfig, ResidencyConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.footprint import Footprint
from latebind.domain.model import ModelSpec
from latebind.simulation.cluster.fleet import ClusterModel, Fault, Fleet, MachineKind, Requests
from tests.models import SCORES, VECTOR


def random_fleet(random: Random, *, machines: int, stages: int = 1, exits: bool = False) -> Fleet:
    """Machines of two kinds and up to eight models, of which rarely all fit."""
    short = random.choice([0.2, 1.0])  # of the time that is usually allowed: few can await a large batch
    models = tuple(
        [
            ClusterModel(
                _model(random, f"model-{i}", random.randint(1, stages), exits), short * random.uniform(0.02, 0.3)
            )
            for i in range(random.randint(1, 8))
        ]
    )
    sizes = [model.served.footprint.size for model in models]
    memory = max(*sizes, int(sum(sizes) * random.choice([0.3, 0.5, 0.8, 2.0])))
    kinds = [
        MachineKind("small", memory, random.choice([1, 1, 2, 3])),
        MachineKind("large", 2 * memory, random.choice([1, 2]), speed=2.0, loading=0.5),
    ]
    return Fleet(
        tuple([kinds[random.random() < 0.3 and machines > 1] for _ in range(machines)]),
        models,
        PolicyConfig(random.choice(["late", "late", "graph"]), random.choice([0, 0, 3]), shed=random.random() < 0.8),
        ResidencyConfig(
            policy=random.choice(["late", "iam", "lru"]),
            stages=stages == 1 and random.random() < 0.7,
            trim=random.random() < 0.8,
            order=random.choice(["waits", "oldest"]),
            foresight=random.random() < 0.7,
            patience=random.choice([0.05, 0.5, 30.0]),
            window=random.choice([1.0, 600.0]),
        ),
        hop=random.choice([0.0, 0.002]) if machines > 1 else 0.0,
    )


def random_requests(random: Random, fleet: Fleet, count: int) -> Requests:
    """Requests at a third to four times what the machines can answer one by one."""
    models = fleet.models
    alone = sum([model.served.costs.remaining(0, 1) for model in models]) / len(models)
    rate = len(fleet.machines) / alone * random.choice([0.3, 0.8, 1.5, 4.0])
    which = random.choices(range(len(models)), [random.random() ** 3 for _ in models], k=count)
    return Requests(
        np.cumsum([random.expovariate(rate) for _ in range(count)]),
        np.array(which, dtype=np.int32),
        np.array([_leaves(random, models[number].served) for number in which], dtype=np.int16),
    )


def random_faults(random: Random, fleet: Fleet, requests: Requests) -> tuple[Fault, ...]:
    """A few deaths, of machines that may be dead already."""
    last = float(requests.times[-1])
    machines = range(len(fleet.machines))
    return tuple(
        [Fault(random.uniform(0.0, last), random.choice(machines), random.uniform(0.0, last / 3)) for _ in range(3)]
    )


def _model(random: Random, name: str, stages: int, exits: bool) -> ServedModel:
    base = random.uniform(0.001, 0.01) / stages
    curves = tuple([_curve(base * random.uniform(0.3, 2.0), base * random.uniform(0.05, 1.0)) for _ in range(stages)])
    rates: dict[int, float] = {}
    for stage in range(stages - 1):
        if exits and random.random() < 0.6:
            rates[stage] = random.uniform(0.0, 0.5) * (1.0 - sum(rates.values()))
    lookups = {stage: Curve((1, 4), (0.1 * base, 0.2 * base)) for stage in rates}
    spec = ModelSpec(name, "1", (VECTOR,), (SCORES,), stages, random.choice([1, 2, 4, 8, 16]), tuple(rates))
    sizes = tuple([random.randint(1, 20) for _ in range(stages)])
    long = random.choice([0.02, 0.02, 0.5])  # some take longer to load than their requests may take
    seconds = tuple([random.uniform(0.001, long) / stages for _ in sizes])
    fixed, grain = random.choice([0.0, 0.003]), random.choice([0, 1, 4, 40])
    footprint = Footprint(sizes, seconds, fixed=fixed, grain=grain)
    return ServedModel(spec, ModelCosts(curves, lookups, rates), random.choice([5, 100]), footprint)


def _curve(first: float, each: float) -> Curve:
    return Curve((1, 2, 8), (first, first + 0.9 * each, first + 7.0 * each))


def _leaves(random: Random, model: ServedModel) -> int:
    left = random.random()
    for stage, share in sorted(model.costs.hit_rates.items()):
        if left < share:
            return stage
        left -= share
    return model.spec.stages - 1
