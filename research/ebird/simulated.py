"""Runs on the simulated card. Each is given by network, side, load and seed, so any can be repeated alone."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.simulation.driver import Simulator
from latebind.simulation.hardware import After, Work
from latebind.simulation.workloads import Arrival, diurnal, stepped
from research.ebird.sides import Kind, Side
from research.hardware.chip import LARGEST, SIX, Chip, Footprint
from research.hardware.gpu import HostBatched, Pooled

QOS = 0.200  # seconds (Ebird, section VIII-B)
AT_LOW, AT_HIGH = 150, 250  # requests (the same)
WARM_UP = 0.05  # of the requests of a search: nobody is there when they come
STEPS = 8  # of a search, each of which halves what is open
TAIL = 99.0  # percent of latencies that must be within the target

Figures = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Steps:
    """So many requests at each rate, in turn; gaps are exponential."""

    steps: tuple[tuple[float, int], ...]

    def arrivals(self, served: ServedModel, random: Random) -> Iterator[Arrival]:
        """Yield them."""
        return stepped(served, steps=self.steps, allowed=QOS, random=random)


@dataclass(frozen=True, slots=True)
class Day:
    """A rate that goes from `low` to `high` and back, in so many seconds."""

    low: float
    high: float
    seconds: float

    def arrivals(self, served: ServedModel, random: Random) -> Iterator[Arrival]:
        """Yield them."""
        return diurnal(served, low=self.low, high=self.high, day=self.seconds, days=1, allowed=QOS, random=random)


@dataclass(frozen=True, slots=True)
class Task:
    """One run."""

    network: str
    side: Side
    load: Steps | Day
    chip: Chip
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """The latencies of a run in seconds, in the order of arrival."""

    task: Task
    latencies: Figures


@dataclass(frozen=True, slots=True)
class Stable:
    """One load for so many seconds (section VIII-C). `most` is what nobody bears, as a multiple of what is computed."""

    seconds: float
    most: float = 1.1

    def at(self, load: float) -> tuple[Steps, int]:
        """Return the load, and after how many requests latencies count."""
        requests = max(1, round(load * self.seconds))
        return Steps(((load, requests),)), int(WARM_UP * requests)


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests at the share `low` of a load, then some at the load, which can be borne past capacity for as long."""

    low: float
    most: float = 3.0

    def at(self, load: float) -> tuple[Steps, int]:
        """Return the load, and after how many requests latencies count."""
        return Steps(((self.low * load, AT_LOW), (load, AT_HIGH))), AT_LOW


@dataclass(frozen=True, slots=True)
class Search:
    """What is the highest load within the target?"""

    network: str
    side: Side
    chip: Chip
    load: Stable | Burst
    seed: int = 0


def run(task: Task) -> Result:
    """Run one task; every request is answered."""
    served, footprint = model(task.network, task.chip)
    side = task.side
    if side.kind is Kind.STATIC:
        served = replace(served, costs=full(served.costs))
    settings = SchedulerConfig((served,), side.workers, side.policy, side.granularities, side.at_once)
    card = Pooled if side.pool else Static if side.kind is Kind.STATIC else HostBatched
    simulator = Simulator(settings, hardware=partial(card, task.chip, {task.network: footprint}))
    records = simulator.run(task.load.arrivals(served, Random(task.seed)))
    simulator.scheduler.check()
    return Result(task, np.array([record.latency for record in sorted(records, key=lambda record: record.request)]))


class Static(HostBatched):
    """Batches of one size, filled up with dummy rows (section III-A), for models that cost as `full` says."""

    def run(self, work: Work, now: float, after: After) -> None:
        """Copy and compute as many rows as the largest batch has."""
        super().run(replace(work, rows=LARGEST), now, after)


def full(costs: ModelCosts) -> ModelCosts:
    """Return costs by which any batch takes as long as the largest."""
    stages = [Curve((1, LARGEST), (costs.step(stage, LARGEST),) * 2) for stage in range(len(costs.stages))]
    return replace(costs, stages=tuple(stages))


def highest(search: Search) -> float:
    """Return the highest load, in requests a second, at which 99 % of latencies are within the target.

    The gaps between requests are those of one draw, scaled to each load.
    """
    low, high = 0.0, search.load.most * limit(search.network, search.chip)
    for _ in range(STEPS):
        load = 0.5 * (low + high)
        if _within(search, load):
            low = load
        else:
            high = load
    return low


def _within(search: Search, load: float) -> bool:
    steps, first = search.load.at(load)
    found = run(Task(search.network, search.side, steps, search.chip, search.seed))
    return bool(np.percentile(found.latencies[first:], TAIL) <= QOS)


def limit(network: str, chip: Chip) -> float:
    """Return the requests a second that the card computes if it never waits."""
    return LARGEST / model(network, chip)[1].busy.step(0, LARGEST)


@cache
def model(network: str, chip: Chip) -> tuple[ServedModel, Footprint]:
    """Return a network as the scheduler knows it, and as the card runs it."""
    return SIX[network].served(chip), SIX[network].footprint(chip)
