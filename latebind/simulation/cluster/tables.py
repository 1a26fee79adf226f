"""What the models of a fleet cost on each kind of machine: for its schedulers, and in whole nanoseconds for routers.

Routers add and compare whole numbers, so that sums do not depend on the order in which they came about.
"""

from dataclasses import dataclass, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.simulation.cluster.fleet import Fleet, MachineKind

NANO = 1e9


@dataclass(frozen=True, slots=True)
class Tables:
    """Nanoseconds, int64, by kind and model (kinds, models); `kinds` in the order of their first machines.

    `alone` is a request's mean in a batch of its own, with the exits that it may take; `each` its share of the largest
    batch that may form; `load` the loading of all stages. `room` (models,) is what a request may take at a machine: the
    time allowed less the hop. `kind_of` (machines,) int32 and `workers` (machines,) int64 tell of each machine.
    """

    kinds: tuple[MachineKind, ...]
    kind_of: NDArray[np.int32]
    workers: NDArray[np.int64]
    alone: NDArray[np.int64]
    each: NDArray[np.int64]
    load: NDArray[np.int64]
    room: NDArray[np.int64]


def tables_of(fleet: Fleet) -> Tables:
    """Return the tables of a fleet."""
    kinds = tuple(dict.fromkeys(fleet.machines))
    served = [[scaled(model.served, kind) for model in fleet.models] for kind in kinds]
    largest = [largest_batch(model.served, fleet.policy) for model in fleet.models]
    return Tables(
        kinds,
        np.array([kinds.index(machine) for machine in fleet.machines], dtype=np.int32),
        np.array([machine.workers for machine in fleet.machines], dtype=np.int64),
        _table([[mean_seconds(one.costs, 1) for one in row] for row in served]),
        _table([[mean_seconds(one.costs, b) / b for one, b in zip(row, largest, strict=True)] for row in served]),
        _table([[load_seconds(one) for one in row] for row in served]),
        _table([[model.allowed - fleet.hop for model in fleet.models]])[0],
    )


def scheduler_config(fleet: Fleet, kind: MachineKind) -> SchedulerConfig:
    """Return what the scheduler of a machine starts from; its memory is the budget."""
    residency = msgspec.structs.replace(fleet.residency, budget=kind.memory)
    models = tuple(scaled(model.served, kind) for model in fleet.models)
    return SchedulerConfig(models, workers=kind.workers, policy=fleet.policy, residency=residency)


def scaled(model: ServedModel, kind: MachineKind) -> ServedModel:
    """Return a model as it is on machines of a kind: runs take `1 / speed` of their seconds, loads `loading` times."""
    if kind.speed == 1.0 and kind.loading == 1.0:
        return model
    costs, footprint, speed = model.costs, model.footprint, kind.speed
    return replace(
        model,
        costs=replace(
            costs,
            stages=tuple([_quicker(curve, speed) for curve in costs.stages]),
            lookups={stage: _quicker(curve, speed) for stage, curve in costs.lookups.items()},
            slopes={stage: _quicker(curve, speed) for stage, curve in costs.slopes.items()},
            load_seconds=costs.load_seconds * kind.loading,
        ),
        footprint=replace(
            footprint,
            seconds=tuple([seconds * kind.loading for seconds in footprint.seconds]),
            gains=tuple([seconds / speed for seconds in footprint.gains]),
            fixed=footprint.fixed * kind.loading,
        ),
    )


def largest_batch(model: ServedModel, policy: PolicyConfig) -> int:
    """Return the most requests of a model that a batch may have."""
    return min(model.spec.max_batch, policy.max_batch or model.spec.max_batch)


def mean_seconds(costs: ModelCosts, batch: int) -> float:
    """Return the seconds of a batch in which each stage runs as often as requests get to it."""
    reach, seconds = 1.0, 0.0
    for stage in range(len(costs.stages)):
        seconds += reach * costs.step(stage, batch)
        reach -= costs.hit_rates.get(stage, 0.0)
    return seconds


def load_seconds(model: ServedModel) -> float:
    """Return the seconds until all stages are in memory; learned caches come later."""
    footprint = model.footprint
    return footprint.fixed + sum(footprint.seconds[: footprint.stages])


def _table(seconds: list[list[float]]) -> NDArray[np.int64]:
    return np.array([[round(NANO * one) for one in row] for row in seconds], dtype=np.int64)


def _quicker(curve: Curve, speed: float) -> Curve:
    return Curve(curve.batches, tuple([seconds / speed for seconds in curve.seconds]))
