"""The models that a workload describes and the requests for them, drawn from the seed of the workload.

How often each model is asked for over time comes from a trace, or is drawn.
"""

import csv
import zipfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, exp, log
from pathlib import Path
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import ServedModel
from latebind.domain.costs import Curve, Footprint, Grid, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import MOST_SIZE, Dim
from latebind.learned.metadata import read_caches, with_caches
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import WEIGHTS, ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.cluster.fleet import ClusterModel, Requests
from latebind.simulation.cluster.workload import Drawn, Models, Traffic, Workload, bytes_of
from latebind.simulation.lengths import Rows, read_rows

MINUTE = 60.0
VECTOR = TensorSpec("x", "float32", (1,))
LENGTH, LONGEST = "length", MOST_SIZE - 1  # the named dimension of declared models
SEEDS = {"models": 0, "traffic": 1, "requests": 2}  # each draws for itself


@dataclass(frozen=True, slots=True)
class Rates:
    """Requests that are `expected` of each model in each slot of `step` seconds `(models, slots)`.

    If `exact`, there are exactly so many; otherwise their number is drawn from a Poisson distribution.
    """

    expected: NDArray[np.float64]
    step: float
    exact: bool = False

    @property
    def totals(self) -> NDArray[np.float64]:
        """How many requests are expected of each model `(models,)`."""
        totals: NDArray[np.float64] = self.expected.sum(axis=1)
        return totals

    def times(self, factors: NDArray[np.float64] | float) -> "Rates":
        """Return the same rates with the rate of each model multiplied by a factor."""
        expected = self.expected * np.reshape(factors, (-1, 1))
        return Rates(expected, self.step, self.exact and bool(np.all(factors == 1.0)))

    def only(self, models: NDArray[np.int64]) -> "Rates":
        """Return the rates of some of the models."""
        return Rates(self.expected[models], self.step, self.exact)


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
    dims: tuple[Dim, ...] = ()
    rows: Rows = ()
    mean = 1.0
    if models.lengths:
        rows = read_rows(models.lengths, (Dim(LENGTH, 1, LONGEST),), name)
        dims, mean = (Dim(LENGTH, 1, max(length for length, _ in rows)),), fmean(length for length, _ in rows)

    def curve(length: int) -> Curve:
        each = (1.0 - models.once) * length / mean
        return Curve(batches, tuple([seconds / stages * (models.once + each * b) for b in batches]))

    ends = (1, dims[0].most) if dims and dims[0].most > 1 else (1,)
    grid = Grid(ends, tuple(map(curve, ends)))
    hits = {stage: share for stage, share in enumerate(models.hits) if share}
    costs = ModelCosts((grid,) * stages, {stage: Curve((1,), (models.lookup,)) for stage in hits}, hits)
    spec = ModelSpec(name, "1", (VECTOR,), (VECTOR,), stages, models.batch, tuple(hits), dims=dims, pads=True)
    return _served(models, spec, costs, size, rows)


def _built(models: Models) -> list[ClusterModel]:
    """Read the newest version of every model in a folder, or of those named: measured costs, but no weights."""
    found = []
    for path in find_models(Path(models.repository), models.only or None):
        directory = ModelDirectory.open(path)
        spec, costs = with_caches(*read_spec_and_costs(directory), read_caches(directory))
        if spec.kinds:
            raise ConfigError(
                f"{directory.path} is a sequence model, and a workload says of no request how long its answer is: "
                "name the others with models.only"
            )
        if models.lengths and not spec.dims:
            raise ConfigError(f"the rows of {directory.path} are all of one size: leave out models.lengths")
        rows = read_rows(models.lengths, spec.dims, spec.name) if spec.dims else ()
        for copy in range(models.count):
            one = replace(spec, name=f"{spec.name}-{copy}") if models.count > 1 else spec
            found.append(_served(models, one, costs, directory.files[WEIGHTS].bytes, rows))
    return found


def _served(models: Models, spec: ModelSpec, costs: ModelCosts, size: float, rows: Rows) -> ClusterModel:
    """Return a model with weights of `size` bytes, whose requests have one of these rows where rows differ."""
    piece, bandwidth = max(1, int(size / spec.stages)), bytes_of("bandwidth", models.bandwidth)
    footprint = Footprint((piece,) * spec.stages, (piece / bandwidth,) * spec.stages, fixed=models.start)
    model = ClusterModel(ServedModel(spec, costs, models.queue, footprint), models.deadline, rows)
    return replace(model, allowed=models.deadline + models.times * model.alone()) if models.times else model


def _number(written: float | str | Drawn, what: str, random: np.random.Generator) -> float:
    if isinstance(written, Drawn):
        return exp(random.normal(log(_number(written.median, what, random)), written.spread))
    return float(bytes_of(what, written)) if isinstance(written, str) else float(written)


def rates_of(traffic: Traffic, models: int, random: np.random.Generator) -> Rates:
    """Return the request rates of this many models. Raises `ConfigError` if a trace cannot be read."""
    if traffic.trace:
        return _traced(traffic, models, random)
    shares = np.arange(1, models + 1, dtype=np.float64) ** -traffic.zipf  # Zipf's law, a random rank for each model
    expected = random.permutation(traffic.rate * traffic.duration * shares / shares.sum())
    return Rates(expected[:, None], traffic.duration)


def drawn_requests(
    rates: Rates, models: Sequence[ClusterModel], random: np.random.Generator, *, duration: float
) -> Requests:
    """Draw the requests of `duration` seconds. Arrivals are uniform within a slot."""
    counts = np.rint(rates.expected).astype(np.int64) if rates.exact else random.poisson(rates.expected)
    slots = [spread_out(some, slot * rates.step, rates.step, random) for slot, some in enumerate(counts.T)]
    times, asked = (np.concatenate(column) for column in zip(*slots, strict=True))
    kept = int(np.count_nonzero(times < duration))
    asked = asked[:kept]
    leaves = _leaves(asked, models, random)
    counts = np.array([max(1, len(model.rows)) for model in models])
    rows = random.integers(counts[asked]) if counts.max() > 1 else np.zeros(kept, np.int32)
    return Requests(times[:kept], asked, leaves, rows.astype(np.int32))


def spread_out(
    counts: NDArray[np.int64], start: float, step: float, random: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Return the sorted arrival times of a slot and the model of each, given how many requests each model has in it."""
    models = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    at = start + step * random.random(len(models))
    order = np.argsort(at, kind="stable")
    return at[order], models[order]


def laid_over(
    counts: NDArray[np.int64], places: int, minutes: NDArray[np.int64], random: np.random.Generator
) -> NDArray[np.int64]:
    """Assign the functions of a trace `(functions, minutes)` to `places` at random; return counts `(places, minutes)`.

    If there are more places than functions, functions are used several times, each time shifted by a random number of
    minutes. The trace is treated as a circle: its first minute follows its last.
    """
    functions, length = counts.shape
    order = np.resize(random.permutation(functions), places)
    starts = np.where(np.arange(places) < functions, 0, random.integers(length, size=places))
    laid: NDArray[np.int64] = counts[order[:, None], (minutes + starts[:, None]) % length]
    return laid


def _traced(traffic: Traffic, models: int, random: np.random.Generator) -> Rates:
    """Return rates from a trace, with a function for each model. Functions used again start at a random minute."""
    counts = read_invocations(Path(traffic.trace), traffic.only).counts
    window = traffic.first + np.arange(ceil(traffic.duration / MINUTE))
    every = laid_over(counts, max(models, len(counts)), window, random)
    expected = np.zeros((models, len(window)))
    np.add.at(expected, np.arange(len(every)) % models, every)
    if traffic.rate:
        expected *= traffic.rate * MINUTE * len(window) / max(1.0, float(expected.sum()))
    return Rates(expected, MINUTE, exact=not traffic.rate)


def _leaves(models: NDArray[np.int32], every: Sequence[ClusterModel], random: np.random.Generator) -> NDArray[np.int16]:
    """Draw the stage after which each request leaves, by the hit rates of the caches; otherwise the last stage."""
    last = np.array([model.served.spec.stages - 1 for model in every], dtype=np.int16)
    hits = [model.served.costs.hit_rates for model in every]
    stages = max([max(one, default=-1) for one in hits], default=-1) + 1
    if not stages:
        return last[models]
    left = np.cumsum([[one.get(stage, 0.0) for stage in range(stages)] for one in hits], axis=1)  # before each stage
    hit = random.random(len(models))[:, None] < left[models]
    return np.where(hit[:, -1], hit.argmax(axis=1), last[models]).astype(np.int16)


# The Azure Functions trace of 2019 (Shahrad et al., ATC 2020): invocations by function and minute


@dataclass(frozen=True, slots=True)
class Invocations:
    """How often each function was called in each minute, `counts` (functions, minutes) int64, and what triggers it."""

    counts: NDArray[np.int64]
    triggers: tuple[str, ...]


def read_invocations(file: Path, only: tuple[str, ...] = ()) -> Invocations:
    """Read a trace, and keep only functions with one of the triggers in `only` (all functions if `only` is empty).

    `file` is a day of the published trace, such as `invocations_per_function_md.anon.d01.csv`, or an .npz file with
    `counts` (functions, minutes) and `trigger` (functions). Raises `ConfigError` if it is neither.
    """
    what_to_give = "give a day's CSV file of the Azure trace, or an .npz"
    try:
        found = _from_arrays(file) if file.suffix == ".npz" else _from_table(file, only)
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{file} is no trace: {error}; {what_to_give}") from error
    places = [place for place, trigger in enumerate(found.triggers) if not only or trigger in only]
    if not places or not found.counts.shape[1]:
        raise ConfigError(f"{file} has no functions that {' or '.join(only) or 'anything'} calls: {what_to_give}")
    return Invocations(found.counts[places], tuple([found.triggers[place] for place in places]))


def _from_arrays(file: Path) -> Invocations:
    with np.load(file, allow_pickle=False) as arrays:
        counts, triggers = arrays["counts"], arrays["trigger"]
    if counts.ndim != 2 or triggers.shape != counts.shape[:1]:
        raise ValueError(f"its counts are {counts.shape} and its triggers {triggers.shape}")
    if not np.issubdtype(counts.dtype, np.integer):
        raise ValueError(f"its counts are {counts.dtype}, no whole numbers")
    if np.any(counts < 0):
        raise ValueError("some of its counts are below 0")
    return Invocations(counts.astype(np.int64), tuple(triggers.tolist()))


def _from_table(file: Path, only: tuple[str, ...]) -> Invocations:
    """Read a CSV file with the columns HashOwner, HashApp, HashFunction, Trigger, and one for each minute, from 1."""
    with file.open(newline="") as lines:
        rows = csv.DictReader(lines)
        minutes = [name for name in rows.fieldnames or () if name.isdigit()]
        if not minutes:
            raise ValueError("it has no columns of minutes")
        asked = [row for row in rows if not only or row["Trigger"] in only]
        counts = np.array([[int(row[minute]) for minute in minutes] for row in asked], dtype=np.int64)
    return Invocations(counts.reshape(len(asked), len(minutes)), tuple([row["Trigger"] for row in asked]))
