"""Draws the requests of a workload: the arrival time, the model, and the stage after which each request leaves."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latebind.simulation.cluster.azure import read_invocations
from latebind.simulation.cluster.fleet import ClusterModel, Requests
from latebind.simulation.cluster.workload import Bursts, Traffic

MINUTE = 60.0
STEP = 10.0  # seconds: as long the rate of a generator stays as it is

Expected = Callable[[int], NDArray[np.float64]]  # requests of each model within a slot


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

    @property
    def slots(self) -> int:
        """The number of slots."""
        return int(self.factors.shape[-1])

    def expected(self, slot: int) -> NDArray[np.float64]:
        """Return how many requests of each model are expected in a slot."""
        return self.means * self.factors[..., slot] * self.step

    def times(self, factors: NDArray[np.float64]) -> "Rates":
        """Return the same rates with the rate of each model multiplied by a factor."""
        return Rates(self.means * factors, self.factors, self.step, self.exact and bool(np.all(factors == 1.0)))

    def only(self, models: NDArray[np.int64]) -> "Rates":
        """Return the rates of some of the models."""
        factors = self.factors if self.factors.ndim == 1 else self.factors[models]
        return Rates(self.means[models], factors, self.step, self.exact)


def rates_of(traffic: Traffic, models: int, random: np.random.Generator) -> Rates:
    """Return the request rates of this many models. Raises `ConfigError` if a trace cannot be read."""
    return _traced(traffic, models, random) if traffic.trace else _generated(traffic, models, random)


def drawn_requests(
    rates: Rates, models: Sequence[ClusterModel], traffic: Traffic, random: np.random.Generator, weight: float = 1.0
) -> Requests:
    """Draw the requests, slot by slot. Arrivals are uniform within a slot."""
    last, cumulated = _leaving(models)
    bursts = _bursts(traffic, len(models), random)
    times, whose, leaves = [np.empty(0)], [np.empty(0, np.int32)], [np.empty(0, np.int16)]
    for slot in range(rates.slots):
        start = slot * rates.step
        expected = rates.expected(slot)
        for burst in bursts:
            expected[burst.model] *= burst.factor(start, start + rates.step)
        counts = np.rint(expected).astype(np.int64) if rates.exact and not bursts else random.poisson(expected)
        at, some = spread_out(counts, start, rates.step, random)
        within = np.count_nonzero(at < traffic.duration)
        times.append(at[:within])
        whose.append(some[:within])
        leaves.append(_leaves(some[:within], last, cumulated, random))
    return Requests(np.concatenate(times), np.concatenate(whose), np.concatenate(leaves), weight)


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


@dataclass(frozen=True, slots=True)
class _Burst:
    """From `start` to `end` (seconds), one model is asked for `times` as often as usual."""

    model: int
    start: float
    end: float
    times: float

    def factor(self, start: float, end: float) -> float:
        """Return how many times as many requests a slot has."""
        share = max(0.0, min(end, self.end) - max(start, self.start)) / (end - start)
        return 1.0 + (self.times - 1.0) * share


def _bursts(traffic: Traffic, models: int, random: np.random.Generator) -> list[_Burst]:
    told: Bursts | None = traffic.bursts
    if told is None:
        return []
    count = random.poisson(traffic.duration / told.every)
    starts, which = random.uniform(0.0, traffic.duration, count), random.integers(0, models, count)
    return [
        _Burst(model, start, start + told.length, told.times)
        for start, model in zip(starts.tolist(), which.tolist(), strict=True)
    ]


def _generated(traffic: Traffic, models: int, random: np.random.Generator) -> Rates:
    """Return rates by Zipf's law, with a random rank for each model, times a daily cycle that all models share."""
    shares = np.arange(1, models + 1, dtype=np.float64) ** -traffic.zipf
    means = random.permutation(traffic.rate * shares / shares.sum())
    middles = STEP * (np.arange(ceil(traffic.duration / STEP)) + 0.5)
    factors = 1.0 - traffic.diurnal * np.cos(2.0 * np.pi * middles / traffic.day)
    return Rates(means, factors / factors.mean(), STEP)


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


def _leaving(models: Sequence[ClusterModel]) -> tuple[NDArray[np.int16], NDArray[np.float64]]:
    """Return the last stage of each model, and the share of requests that left before each stage `(models, stages)`."""
    last = np.array([model.served.spec.stages - 1 for model in models], dtype=np.int16)
    rates = [model.served.costs.hit_rates for model in models]
    hits = np.zeros((len(models), max([max(one, default=-1) for one in rates], default=-1) + 1))
    for model, one in enumerate(rates):
        for stage, share in one.items():
            hits[model, stage] = share
    return last, np.cumsum(hits, axis=1)


def _leaves(
    models: NDArray[np.int32],
    last: NDArray[np.int16],
    cumulated: NDArray[np.float64],
    random: np.random.Generator,
) -> NDArray[np.int16]:
    """Draw the stage after which each request leaves, by the hit rates of the caches; otherwise the last stage."""
    if not cumulated.shape[1]:
        return last[models]
    chance = random.random(len(models))
    hit = chance[:, None] < cumulated[models]
    return np.where(hit[:, -1], hit.argmax(axis=1), last[models]).astype(np.int16)
