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
from latebind.simulation.cluster.workload import Traffic

MINUTE = 60.0


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
    return Requests(times[:kept], asked[:kept], _leaves(asked[:kept], models, random))


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
