"""Makes the fleet that a workload describes and the mean request rate of each model, from the seed of the workload."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.cluster.fleet import ClusterModel, Fault, Fleet, MachineKind, Requests
from latebind.simulation.cluster.tables import largest_batch, mean_seconds
from latebind.simulation.cluster.traffic import Rates, drawn_requests, rates_of
from latebind.simulation.cluster.workload import Drawn, Models, Workload, bytes_of

VECTOR = TensorSpec("x", "float32", (1,))
HALF = 0.5  # of what a machine carries: what a part of a model may need, of which samples take some
SEEDS = {"models": 0, "traffic": 1, "failures": 2, "requests": 3}  # each draws for itself


@dataclass(frozen=True, slots=True)
class Population:
    """A `fleet` and the mean request `rates` of its models. Each simulated request stands for `weight` requests."""

    fleet: Fleet
    rates: Rates
    weight: float


def requests_of(workload: Workload, seed: int) -> Requests:
    """Return the requests of a workload as drawn with `seed`. The models are always drawn with the workload's seed."""
    population = population_of(workload)
    random, models = random_of(seed, "requests"), population.fleet.models
    return drawn_requests(population.rates, models, workload.traffic, random, population.weight)


def population_of(workload: Workload) -> Population:
    """Return the fleet of a workload and the request rates of its models.

    Raises `ConfigError` or `RepositoryError` if a model or a trace cannot be read.
    """
    families = [_family(one, random_of(workload.seed, "models", place)) for place, one in enumerate(workload.models)]
    models = [model for family in families for model in family]
    _require_names(models)
    rates = rates_of(workload.traffic, len(models), random_of(workload.seed, "traffic"))
    rates = rates.times(_factors(workload, rates.means, [len(family) for family in families]))
    machines = [machine.kind() for machine in workload.machines for _ in range(machine.count)]
    weight = 1.0
    if workload.sample < 1.0:
        models, part = _sampled(workload, models, rates, machines)
        machines = fewer(machines, workload.sample)
        weight = float(rates.means.sum() / max(part.means.sum(), 1e-300))
        rates = part
    fleet = Fleet(
        tuple(machines),
        tuple(models),
        workload.policy,
        workload.residency,
        workload.hop,
        _faults(workload, len(machines)),
    )
    return Population(fleet, rates, weight)


def random_of(seed: int, what: str, place: int = 0) -> np.random.Generator:
    """Return the random generator for `what`, which is one of the keys of `SEEDS`."""
    return np.random.default_rng([seed, SEEDS[what], place])


def sample(loads: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """Return the indices, ascending, of this share of `loads`, chosen so that they have the same share of the sum.

    The loads are sorted from the largest to the smallest and cut into groups of `1 / share`. One is taken of each
    group: the one that keeps the sum of all that are taken closest to its share. So frequent and rare models appear in
    the sample in the same proportion as in the whole.
    """
    order = np.argsort(-loads, kind="stable")
    taken: list[int] = []
    wanted = has = 0.0
    for some in np.array_split(order, max(1, round(share * len(loads)))):
        wanted += share * float(loads[some].sum())
        best = int(some[np.argmin(np.abs(has + loads[some] - wanted))])
        taken.append(best)
        has += float(loads[best])
    return np.sort(np.array(taken, dtype=np.int64))


def fewer(machines: Sequence[MachineKind], share: float) -> list[MachineKind]:
    """Return this share of the machines of each kind, at least one machine in all."""
    kinds = list(dict.fromkeys(machines))
    some = [kind for kind in kinds for _ in range(round(share * list(machines).count(kind)))]
    return some or [machines[0]]


def _sampled(
    workload: Workload, models: Sequence[ClusterModel], rates: Rates, machines: Sequence[MachineKind]
) -> tuple[list[ClusterModel], Rates]:
    """Return a share of the models. One that needs several machines is first split into parts that need half of one."""
    largest = [largest_batch(model.served, workload.policy) for model in models]
    each = [mean_seconds(model.served.costs, b) / b for model, b in zip(models, largest, strict=True)]
    loads = rates.means * np.array(each)
    carries = sum([machine.workers * machine.speed for machine in machines]) / len(machines)
    parts = np.maximum(1, np.ceil(loads / (HALF * carries))).astype(np.int64)
    whole = np.repeat(np.arange(len(models)), parts)
    chosen = sample((loads / parts)[whole], workload.sample)
    some, place = whole[chosen].tolist(), chosen - (np.cumsum(parts) - parts)[whole[chosen]]
    found = [_part(models[i], int(k), int(parts[i])) for i, k in zip(some, place.tolist(), strict=True)]
    return found, rates.only(whole[chosen]).times(1.0 / parts[whole[chosen]])


def _part(model: ClusterModel, place: int, parts: int) -> ClusterModel:
    if parts == 1:
        return model
    spec = replace(model.served.spec, name=f"{model.served.spec.name}~{place}")
    return replace(model, served=replace(model.served, spec=spec))


def _family(models: Models, random: np.random.Generator) -> list[ClusterModel]:
    if models.repository:
        return _built(models)
    names = [models.name] if models.count == 1 else [f"{models.name}-{i}" for i in range(models.count)]
    return [_declared(models, name, random) for name in names]


def _declared(models: Models, name: str, random: np.random.Generator) -> ClusterModel:
    """Make one model of a family that the file declares, and draw its size and its seconds where these vary."""
    seconds = _number(models.seconds, f"models {models.name!r}: seconds", random)
    size = _number(models.size, f"models {models.name!r}: size", random)
    stages, batches = models.stages, tuple(range(1, models.batch + 1))
    curve = Curve(batches, tuple([seconds / stages * (models.once + (1.0 - models.once) * b) for b in batches]))
    hits = {stage: share for stage, share in enumerate(models.hits) if share}
    costs = ModelCosts((curve,) * stages, {stage: Curve((1,), (models.lookup,)) for stage in hits}, hits)
    footprint = _footprint(models, size, stages)
    spec = ModelSpec(name, "1", (VECTOR,), (VECTOR,), stages, models.batch, tuple(hits))
    served = ServedModel(spec, costs, models.queue, footprint)
    return ClusterModel(served, models.deadline + models.times * seconds)


def _built(models: Models) -> list[ClusterModel]:
    from latebind.simulation.cluster.built import read_built  # noqa: PLC0415  (torch is slow to import)

    found = []
    for one in read_built(Path(models.repository), models.only):
        footprint = _footprint(models, one.size, one.spec.stages)
        alone = one.costs.remaining(0, 1)
        for copy in range(models.count):
            spec = replace(one.spec, name=f"{one.spec.name}-{copy}") if models.count > 1 else one.spec
            served = ServedModel(spec, one.costs, models.queue, footprint)
            found.append(ClusterModel(served, models.deadline + models.times * alone))
    return found


def _footprint(models: Models, size: float, stages: int) -> Footprint:
    piece = max(1, int(size / stages))
    bandwidth = bytes_of("bandwidth", models.bandwidth)
    return Footprint((piece,) * stages, (piece / bandwidth,) * stages, fixed=models.start)


def _number(written: float | str | Drawn, what: str, random: np.random.Generator) -> float:
    if isinstance(written, Drawn):
        return exp(random.normal(log(_number(written.median, what, random)), written.spread))
    return float(bytes_of(what, written)) if isinstance(written, str) else float(written)


def _factors(workload: Workload, means: NDArray[np.float64], counts: Sequence[int]) -> NDArray[np.float64]:
    """Return by how much to multiply the rates of models so that each family gets its share of all requests."""
    shares = np.array([models.share for models in workload.models])
    if not shares.any():
        return np.ones(len(means))
    of_family = np.repeat(np.arange(len(counts)), counts)
    natural = np.bincount(of_family, weights=means, minlength=len(counts))
    factors: NDArray[np.float64] = (shares / shares.sum() * means.sum() / np.maximum(natural, 1e-300))[of_family]
    return factors


def _require_names(models: Sequence[ClusterModel]) -> None:
    names = Counter(model.served.spec.name for model in models)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"two models are called {twice!r}: give the families other names")


def _faults(workload: Workload, machines: int) -> tuple[Fault, ...]:
    """Return the faults listed in the file for existing machines and those drawn at random, in order of time."""
    faults = [Fault(one.time, one.machine, one.away) for one in workload.faults if one.machine < machines]
    if workload.failures is not None:
        random, every = random_of(workload.seed, "failures"), workload.failures.every
        count = random.poisson(machines * workload.traffic.duration / every)
        times = random.uniform(0.0, workload.traffic.duration, count).tolist()
        which = random.integers(0, machines, count).tolist()
        faults += [Fault(time, machine, workload.failures.away) for time, machine in zip(times, which, strict=True)]
    return tuple(sorted(faults, key=lambda fault: fault.time))
