"""The requests of a cluster: how often each model is asked for over time, from a trace or drawn, and each arrival."""

import csv
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import ConfigError
from latebind.simulation.cluster.fleet import ClusterModel, Requests
from latebind.simulation.cluster.workload import Bursts, Traffic

MINUTE = 60.0
STEP = 10.0  # seconds: as long the rate of a generator stays as it is


@dataclass(frozen=True, slots=True)
class Rates:
    """Request rates of models over time. `means` `(models,)` are the mean rates in requests a second.

    Time is divided into slots of `step` seconds. In each slot, the rate of a model is its mean times `factors`, which
    has the shape `(slots,)` if all models rise and fall together, or `(models, slots)`. If `exact`, a slot has exactly
    as many requests as this gives; otherwise their number is drawn from a Poisson distribution.
    """

    means: NDArray[np.float64]
    factors: NDArray[np.float64]
    step: float
    exact: bool = False

    def times(self, factors: NDArray[np.float64] | float) -> "Rates":
        """Return the same rates with the rate of each model multiplied by a factor."""
        return Rates(self.means * factors, self.factors, self.step, self.exact and bool(np.all(factors == 1.0)))

    def only(self, models: NDArray[np.int64]) -> "Rates":
        """Return the rates of some of the models."""
        factors = self.factors if self.factors.ndim == 1 else self.factors[models]
        return Rates(self.means[models], factors, self.step, self.exact)


def rates_of(traffic: Traffic, models: int, random: np.random.Generator) -> Rates:
    """Return the request rates of this many models. Raises `ConfigError` if a trace cannot be read."""
    if traffic.trace:
        return _traced(traffic, models, random)
    # Zipf's law, with a random rank for each model, times a daily cycle that all models share.
    shares = np.arange(1, models + 1, dtype=np.float64) ** -traffic.zipf
    means = random.permutation(traffic.rate * shares / shares.sum())
    middles = STEP * (np.arange(ceil(traffic.duration / STEP)) + 0.5)
    factors = 1.0 - traffic.diurnal * np.cos(2.0 * np.pi * middles / traffic.day)
    return Rates(means, factors / factors.mean(), STEP)


def drawn_requests(
    rates: Rates,
    models: Sequence[ClusterModel],
    random: np.random.Generator,
    *,
    duration: float,
    bursts: Bursts | None = None,
) -> Requests:
    """Draw the requests of `duration` seconds, slot by slot. Arrivals are uniform within a slot."""
    times, whose = [np.empty(0)], [np.empty(0, np.int32)]
    count = 0 if bursts is None else int(random.poisson(duration / bursts.every))
    begins, bursting = random.uniform(0.0, duration, count), random.integers(0, len(models), count)
    for slot in range(rates.factors.shape[-1]):
        start = slot * rates.step
        expected = rates.means * rates.factors[..., slot] * rates.step
        if bursts is not None:  # one model is asked for more often, for a part of the slot
            within = np.minimum(start + rates.step, begins + bursts.length) - np.maximum(start, begins)
            np.multiply.at(expected, bursting, 1.0 + (bursts.times - 1.0) * np.maximum(0.0, within) / rates.step)
        counts = np.rint(expected).astype(np.int64) if rates.exact and bursts is None else random.poisson(expected)
        at, some = spread_out(counts, start, rates.step, random)
        times.append(at)
        whose.append(some)
    every, asked = np.concatenate(times), np.concatenate(whose)
    kept = int(np.count_nonzero(every < duration))
    return Requests(every[:kept], asked[:kept], _leaves(asked[:kept], models, random))


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
    means = expected.mean(axis=1) / MINUTE
    factors = expected / np.maximum(means * MINUTE, 1e-300)[:, None]
    return Rates(means, factors, MINUTE, exact=not traffic.rate)


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
