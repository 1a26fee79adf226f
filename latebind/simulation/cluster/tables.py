"""The costs of a fleet's models on each kind of machine: in seconds for schedulers, in whole nanoseconds for routers.

Routers add and compare integers, so that a sum does not depend on the order in which its terms were added.
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
    """Costs in int64 nanoseconds by kind of machine and model `(kinds, models)`. `kinds` are as they first appear.

    `alone` is the mean time of a request in a batch of its own, with its chances to leave early. `each` is its share of
    the time of the largest possible batch. `load` is the time to load all stages. `room` `(models,)` is the time that a
    request may spend at a machine: the time allowed minus the hop. `kind_of` `(machines,)` int32 and `workers`
    `(machines,)` int64 are the kind and the number of workers of each machine.
    """

    kinds: tuple[MachineKind, ...]
    kind_of: NDArray[np.int32]
    workers: NDArray[np.int64]
    alone: NDArray[np.int64]
    each: NDArray[np.int64]
    load: NDArray[np.int64]
    room: NDArray[np.int64]


def tables_of(fleet: Fleet) -> Tables:
    """Return the cost tables of a fleet."""
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
    """Return the configuration of the scheduler of a machine. The memory of its kind is the budget for models.

    Requests leave early as profiled, so nothing has to be learned of that.
    """
    residency = msgspec.structs.replace(fleet.residency, budget=kind.memory)
    policy = msgspec.structs.replace(fleet.policy, learn=False)
    models = tuple(scaled(model.served, kind) for model in fleet.models)
    return SchedulerConfig(models, workers=kind.workers, policy=policy, residency=residency)


def scaled(model: ServedModel, kind: MachineKind) -> ServedModel:
    """Return a model with its costs on a kind of machine: runs take `1 / speed` of the time, loads `loading` times."""
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
    """Return the size of the largest batch of a model that may form."""
    return min(model.spec.max_batch, policy.max_batch or model.spec.max_batch)


def mean_seconds(costs: ModelCosts, batch: int) -> float:
    """Return the mean seconds of a batch, in which each stage counts by the share of requests that reach it."""
    reach, seconds = 1.0, 0.0
    for stage in range(len(costs.stages)):
        seconds += reach * costs.step(stage, batch)
        reach -= costs.hit_rates.get(stage, 0.0)
    return seconds


def load_seconds(model: ServedModel) -> float:
    """Return the seconds to load all stages of a model. Learned caches are loaded later and are not included."""
    footprint = model.footprint
    return footprint.fixed + sum(footprint.seconds[: footprint.stages])


def _table(seconds: list[list[float]]) -> NDArray[np.int64]:
    return np.array([[round(NANO * one) for one in row] for row in seconds], dtype=np.int64)


def _quicker(curve: Curve, speed: float) -> Curve:
    return Curve(curve.batches, tuple([seconds / speed for seconds in curve.seconds]))
