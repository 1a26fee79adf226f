"""The models that a workload describes and the requests for them, drawn from the seed of the workload."""

from collections import Counter
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.simulation.cluster.fleet import ClusterModel, Requests
from latebind.simulation.cluster.traffic import Rates, drawn_requests, rates_of
from latebind.simulation.cluster.workload import Drawn, Models, Traffic, Workload, bytes_of

VECTOR = TensorSpec("x", "float32", (1,))
SEEDS = {"models": 0, "traffic": 1, "requests": 2}  # each draws for itself


@dataclass(frozen=True, slots=True)
class Population:
    """Models and how often each is asked for."""

    models: tuple[ClusterModel, ...]
    rates: Rates
    traffic: Traffic

    def requests(self, *, seed: int, scale: float = 1.0) -> Requests:
        """Return the requests of one run, `scale` times as many as usual."""
        random, traffic = _random(seed, "requests"), self.traffic
        rates = self.rates if scale == 1.0 else self.rates.times(scale)
        return drawn_requests(rates, self.models, random, duration=traffic.duration)

    def part(self, places: NDArray[np.int64], shares: NDArray[np.float64]) -> "Population":
        """Return the models at `places` `(N,)`, each with such a share of its requests `(N,)`."""
        models = tuple([self.models[place] for place in places.tolist()])
        return Population(models, self.rates.only(places).times(shares), self.traffic)


def population_of(workload: Workload) -> Population:
    """Return the models of a workload and their request rates.

    Raises `ConfigError` or `RepositoryError` if a model or a trace cannot be read.
    """
    families = [_family(one, _random(workload.seed, "models", place)) for place, one in enumerate(workload.models)]
    models = tuple([model for family in families for model in family])
    names = Counter(model.served.spec.name for model in models)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise ConfigError(f"two models are called {twice!r}: give the families other names")
    rates = rates_of(workload.traffic, len(models), _random(workload.seed, "traffic"))
    shares = np.array([one.share for one in workload.models])
    if shares.any():  # each family gets its share of all requests
        counts = [len(family) for family in families]
        of_family = np.repeat(np.arange(len(counts)), counts)
        natural = np.bincount(of_family, weights=rates.totals, minlength=len(counts))
        rates = rates.times((shares / shares.sum() * rates.totals.sum() / np.maximum(natural, 1e-300))[of_family])
    return Population(models, rates, workload.traffic)


def _random(seed: int, what: str, place: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, SEEDS[what], place])


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
    spec = ModelSpec(name, "1", (VECTOR,), (VECTOR,), stages, models.batch, tuple(hits))
    return _served(models, spec, costs, size, seconds)


def _built(models: Models) -> list[ClusterModel]:
    """Read the newest version of every model in a folder, or of those named: measured costs, but no weights."""
    # These import torch, which takes a second, and most workloads only declare models.
    from latebind.learned.stored import read_caches, with_caches  # noqa: PLC0415
    from latebind.program.stored import read_spec_and_costs  # noqa: PLC0415
    from latebind.repository.directory import WEIGHTS, ModelDirectory  # noqa: PLC0415
    from latebind.repository.listing import find_models  # noqa: PLC0415

    found = []
    for path in find_models(Path(models.repository), models.only or None):
        directory = ModelDirectory.open(path)
        spec, costs = with_caches(*read_spec_and_costs(directory), read_caches(directory))
        if spec.kinds:
            raise ConfigError(
                f"{directory.path} is a sequence model, and a workload says of no request how long it is: "
                "name the others with models.only"
            )
        for copy in range(models.count):
            one = replace(spec, name=f"{spec.name}-{copy}") if models.count > 1 else spec
            found.append(_served(models, one, costs, directory.files[WEIGHTS].bytes, costs.remaining(0, 1)))
    return found


def _served(models: Models, spec: ModelSpec, costs: ModelCosts, size: float, seconds: float) -> ClusterModel:
    """Return a model with weights of `size` bytes, whose requests take so many seconds alone."""
    piece, bandwidth = max(1, int(size / spec.stages)), bytes_of("bandwidth", models.bandwidth)
    footprint = Footprint((piece,) * spec.stages, (piece / bandwidth,) * spec.stages, fixed=models.start)
    return ClusterModel(ServedModel(spec, costs, models.queue, footprint), models.deadline + models.times * seconds)


def _number(written: float | str | Drawn, what: str, random: np.random.Generator) -> float:
    if isinstance(written, Drawn):
        return exp(random.normal(log(_number(written.median, what, random)), written.spread))
    return float(bytes_of(what, written)) if isinstance(written, str) else float(written)
