"""A side of a comparison: the engine or scheduler that is measured, its policy and settings, and what it stands for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from latebind.batching.costs import Estimate
from latebind.domain.config import EngineConfig, PolicyConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.domain.query import PlannerConfig
from research.policies import BATCHING

SLOTS = 4096
SERIAL = "serial"  # the side that takes part wherever the pace is taken
DEFAULT = PolicyConfig()
S = TypeVar("S")
Figures = NDArray[np.float64]  # one for each round
Lengths = Sequence[tuple[int, int]]  # of inputs and answers, in steps


@dataclass(frozen=True, slots=True)
class Side:
    """A policy with its settings, on an engine or scheduler with or without `exits`.

    It has so many `workers` with `threads` each, or a worker for each of `granularities`. For `floor` and `below` see
    `EngineConfig`. `kinds` are the roles in
    which it is compared, `planner` is that of queries. Of simulated cards alone: whether inputs lie in a `pool`
    there.
    """

    label: str
    policy: PolicyConfig = DEFAULT
    kinds: tuple[str, ...] = ()
    exits: bool = False
    floor: float = 1.0
    below: float = 1.0
    workers: int = 1
    threads: int = 1
    granularities: tuple[int, ...] = ()
    pool: bool = False
    planner: PlannerConfig | None = None

    def largest_batch(self, spec: ModelSpec) -> int:
        """Return the largest batch that it may form."""
        most = self.policy.max_batch or spec.max_batch
        return min(most, max(self.granularities, default=most))

    def engine(self, cores: tuple[int, ...], slots: int, backend: str | None = None) -> EngineConfig:
        """Return the engine that it runs on."""
        return EngineConfig(
            workers=self.workers,
            granularities=self.granularities,
            threads=self.threads,
            cores=cores,
            slots=slots,
            exits=self.exits,
            floor=self.floor,
            below=self.below,
            backend=backend,
        )


def graph(size: int = 0, window: float = 0.0, *, shed: bool = False, leave: bool = True) -> PolicyConfig:
    """Return batches that run to their end: of at most `size`, held back for `window` seconds (GraphB).

    Batches of one are serial execution. Unless requests `leave` that have their answer, they wait for the last one.
    """
    return PolicyConfig("graph" if leave else BATCHING["waiting"], size, window=window, shed=shed)


def chosen(every: Mapping[str, S], wanted: Sequence[str], *, always: Sequence[str] = ()) -> dict[str, S]:
    """Return the sides of these names, all where none are named, besides those that take part `always`.

    Raises `ConfigError` for one that there is not.
    """
    unknown = [side for side in wanted if side not in every]
    if unknown:
        raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(map(repr, every))}")
    kept = {*always, *(wanted or every)}
    return {name: side for name, side in every.items() if name in kept}


def alone(served: ServedModel, lengths: Lengths) -> float:
    """Return the mean seconds that rows of these lengths take alone, by profile."""
    estimate = Estimate(served.spec, served.costs)
    return float(np.mean([estimate.whole(1, inputs, outputs) for inputs, outputs in lengths]))


def least(sides: Mapping[str, Figures]) -> Figures:
    """Return for each round the figure of the side with the least mean in all others, as one tunes on past traffic.

    A side chosen by the rounds that it is then judged by would look better than it is, the more so the more there are.
    Of a side whose figure is infinite in some round, the others count so too.
    """
    figures = np.array(list(sides.values()), dtype=np.float64)
    with np.errstate(invalid="ignore"):
        others = figures.sum(axis=1, keepdims=True) - figures if figures.shape[1] > 1 else figures
    others[np.isnan(others)] = np.inf
    found: Figures = figures[others.argmin(axis=0), np.arange(figures.shape[1])]
    return found


def most(sides: Mapping[str, Figures]) -> Figures:
    """Return for each round the figure of the side that has the greatest mean in all others."""
    return -least({name: -figures for name, figures in sides.items()})
