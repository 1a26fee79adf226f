"""Ebird's sides and their runs on a simulated card. A run is given by network, side, load and seed.

The sides are those of Ebird's evaluation, some that it lacks, and `late`.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache, partial
from random import Random

import numpy as np

from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.simulation.driver import Simulator
from latebind.simulation.hardware import After, Work
from latebind.simulation.workloads import stepped
from research.ebird.policies import GRANULARITIES
from research.hardware.gpu import LARGEST, SIX, Chip, Footprint, HostBatched, Pooled
from research.policies import BATCHING
from research.sides import Figures, Side, graph

WINDOWS = (0.005, 0.010, 0.020, 0.030, 0.050, 0.075)  # seconds
PAPERS_WINDOW = 0.030  # that of ResNet-152 (section III-A)
QOS = 0.200  # seconds (Ebird, section VIII-B)
AT_LOW, AT_HIGH = 150, 250  # requests (the same)
WARM_UP = 0.05  # of the requests of a search: nobody is there when they come
STEPS = 8  # of a search, each of which halves what is open
TAIL = 99.0  # percent of latencies that must be within the target


class Kind(StrEnum):
    """What a side stands for. With a window or several workers it is there for some, and counts by its best."""

    NO_WAIT = "no wait"
    OPTIMAL = "optimal wait"
    STATIC = "static"
    POOL_ZERO = "no wait, with pool"
    POOL_WORKERS = "no wait, with pool and workers"
    ELASTIC = "elastic"
    LATE = "late"


def setting(side: Side) -> str:
    """Return the setting in which sides of the same kind differ."""
    if side.granularities:
        return ""
    window = f"{side.policy.window * 1e3:g} ms" if side.policy.window else ""
    return ", ".join(filter(None, (window, f"{side.workers} workers" if side.workers > 1 else "")))


_ALGORITHM_1 = PolicyConfig(BATCHING["elastic"], LARGEST, shed=False)


def _side(kind: Kind, policy: PolicyConfig, *, pool: bool = False, workers: int = 1) -> Side:
    """Return a side on which no request is refused or dropped; with algorithm 1 there is a worker for each size."""
    sizes = GRANULARITIES if policy is _ALGORITHM_1 else ()
    side = Side(str(kind), policy, (kind,), workers=workers, granularities=sizes, pool=pool)
    told = setting(side)
    return replace(side, label=f"{kind} ({told})") if told else side


NO_WAIT = _side(Kind.NO_WAIT, graph(LARGEST))
OPTIMAL = tuple(_side(Kind.OPTIMAL, graph(LARGEST, window)) for window in WINDOWS)
STATIC = tuple(_side(Kind.STATIC, graph(LARGEST, window)) for window in WINDOWS)
POOL_ZERO = _side(Kind.POOL_ZERO, graph(LARGEST), pool=True)
POOL_WORKERS = tuple(_side(Kind.POOL_WORKERS, graph(LARGEST), pool=True, workers=workers) for workers in (2, 4))
LATE = tuple(
    _side(Kind.LATE, PolicyConfig("late", LARGEST, shed=False), pool=True, workers=workers) for workers in (1, 2, 4)
)
ELASTIC = _side(Kind.ELASTIC, _ALGORITHM_1, pool=True, workers=len(GRANULARITIES))

EVALUATED = (NO_WAIT, *OPTIMAL, *STATIC, POOL_ZERO, *POOL_WORKERS, ELASTIC, *LATE)
Steps = tuple[tuple[float, int], ...]  # so many requests at each rate, in turn; gaps are exponential


@dataclass(frozen=True, slots=True)
class Task:
    """One run."""

    network: str
    side: Side
    load: Steps
    chip: Chip
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Stable:
    """One load for so many seconds (section VIII-C). `most` is what nobody bears, as a multiple of what is computed."""

    seconds: float
    most: float = 1.1

    def at(self, load: float) -> tuple[Steps, int]:
        """Return the load, and after how many requests latencies count."""
        requests = max(1, round(load * self.seconds))
        return ((load, requests),), int(WARM_UP * requests)


@dataclass(frozen=True, slots=True)
class Burst:
    """Requests at the share `low` of a load, then some at the load, which can be borne past capacity for as long."""

    low: float
    most: float = 3.0

    def at(self, load: float) -> tuple[Steps, int]:
        """Return the load, and after how many requests latencies count."""
        return ((self.low * load, AT_LOW), (load, AT_HIGH)), AT_LOW


@dataclass(frozen=True, slots=True)
class Search:
    """What is the highest load within the target?"""

    network: str
    side: Side
    chip: Chip
    load: Stable | Burst
    seed: int = 0


def run(task: Task) -> Figures:
    """Run one task; every request is answered. Return latencies in seconds, in the order of arrival."""
    served, footprint = model(task.network, task.chip)
    side = task.side
    static = Kind.STATIC in side.kinds
    if static:
        served = replace(served, costs=full(served.costs))
    settings = SchedulerConfig((served,), side.workers, side.policy, side.granularities)
    card = Pooled if side.pool else Static if static else HostBatched
    simulator = Simulator(settings, hardware=partial(card, task.chip, {task.network: footprint}))
    arrivals = stepped(served, steps=task.load, allowed=QOS, random=Random(task.seed))
    records = simulator.run(arrivals)
    simulator.scheduler.check()
    return np.array([record.latency for record in sorted(records, key=lambda record: record.request)])


class Static(HostBatched):
    """Batches of one size, filled up with dummy rows (section III-A), for models that cost as `full` says."""

    def run(self, work: Work, now: float, after: After) -> None:
        """Copy and compute as many rows as the largest batch has."""
        super().run(replace(work, rows=LARGEST), now, after)


def full(costs: ModelCosts) -> ModelCosts:
    """Return costs by which any batch takes as long as the largest."""
    stages = [Curve((1, LARGEST), (costs.step(stage, LARGEST),) * 2) for stage in range(len(costs.stages))]
    return replace(costs, stages=at_any_length(*stages))


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
    return bool(np.percentile(found[first:], TAIL) <= QOS)


def limit(network: str, chip: Chip) -> float:
    """Return the requests a second that the card computes if it never waits."""
    return LARGEST / model(network, chip)[1].busy.step(0, LARGEST)


@cache
def model(network: str, chip: Chip) -> tuple[ServedModel, Footprint]:
    """Return a network as the scheduler knows it, and as the card runs it."""
    return SIX[network].served(chip), SIX[network].footprint(chip)
