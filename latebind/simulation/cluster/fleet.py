"""A simulated cluster and its work: machines of one kind, models, requests, and the outcomes of the requests."""

from collections import Counter
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

from latebind.cluster.placement import Costs
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Grid
from latebind.simulation.lengths import Rows

UNKNOWN = -1  # in place of an outcome: the run was stopped before the request ended


Whole: TypeAlias = Annotated[int, Meta(ge=1)]
Positive: TypeAlias = Annotated[float, Meta(gt=0)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]


class MachineKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A kind of machine, with `memory` bytes for models and `workers` that run batches at the same time.

    The costs of models are given for a machine of `speed` 1. A machine of speed 2 takes half as long. Loading takes
    `loading` times as long as the model's footprint says. `price` is the price of an hour, in any unit.
    """

    name: str
    memory: Whole
    workers: Whole = 1
    speed: Positive = 1.0
    loading: NotNegative = 1.0
    price: float = 1.0


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """A model of the cluster: its description for the schedulers, and the seconds within which each answer is due.

    Its requests have one of `rows` each, all alike often, where they differ in length.
    """

    served: ServedModel
    allowed: float  # seconds
    rows: Rows = ()

    def mean_seconds(self, batch: int) -> float:
        """Return the mean seconds of a batch of one length; each stage counts by the share of requests it is run by."""
        costs, seconds = self.served.costs, 0.0
        lengths = Counter([length for length, _ in self.rows] or [costs.typical])
        for length, count in lengths.items():
            reach = float(count)
            for stage in range(len(costs.stages)):
                seconds += reach * costs.step(stage, batch, length)
                reach -= count * costs.hit_rates.get(stage, 0.0)
        return seconds / lengths.total()

    def alone(self) -> float:
        """Return the mean seconds of a request that runs alone and to the end."""
        costs = self.served.costs
        lengths = [length for length, _ in self.rows] or [costs.typical]
        return fmean([costs.remaining(0, 1, length) for length in lengths])


@dataclass(frozen=True, slots=True)
class Requests:
    """All requests of a run in order of arrival: `times` in seconds `(N,)` float64 and `models` `(N,)` int32.

    `leaves` `(N,)` int16 is the stage after which each request leaves: the stage whose learned cache answers it, or the
    last one. `rows` `(N,)` int32 is the place of each one's row among those of its model, where these differ.
    """

    times: NDArray[np.float64]
    models: NDArray[np.int32]
    leaves: NDArray[np.int16]
    rows: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Fleet:
    """So many machines of one kind, the models that they serve, and the policies that each machine follows.

    `hop` is the time in seconds from the ingress to a machine and back. Each of `losses` is the time (seconds) at which
    a machine dies for good, and its number.
    """

    kind: MachineKind
    machines: int
    models: tuple[ClusterModel, ...]
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    hop: float = 0.0
    losses: tuple[tuple[float, int], ...] = ()

    def scheduler_config(self) -> SchedulerConfig:
        """Return the configuration of the scheduler of a machine. The memory of its kind is the budget for models."""
        residency = msgspec.structs.replace(self.residency, budget=self.kind.memory)
        models = tuple([scaled(model.served, self.kind) for model in self.models])
        return SchedulerConfig(models, workers=self.kind.workers, policy=self.policy, residency=residency)

    def costs(self) -> dict[str, Costs]:
        """Return what a machine reports of the models: a request counts as it does in the largest batch."""
        found = {}
        for model in self.models:
            one = scaled(model.served, self.kind)
            size = sum(one.footprint.sizes[: one.footprint.stages])
            work = least_work(replace(model, served=one), self.policy) / self.kind.workers
            found[one.spec.name] = Costs(size, one.footprint.penalty, work, model.allowed)
        return found


@dataclass(frozen=True, slots=True)
class Played:
    """What became of each request of a run, in order of arrival.

    `ended` `(N,)` float64 is when each request ended, in seconds; `outcome` `(N,)` int8 is the index of its `Outcome`,
    or `UNKNOWN`, with NaN in `ended`, where the run was stopped before; `machine` `(N,)` int32 is the machine that it
    was sent to, -1 if there was none. `loads` counts loads, `busy` `(machines,)` the seconds that the workers of each
    machine ran.
    """

    requests: Requests
    ended: NDArray[np.float64]
    outcome: NDArray[np.int8]
    machine: NDArray[np.int32]
    loads: int
    busy: NDArray[np.float64]


def scaled(model: ServedModel, kind: MachineKind) -> ServedModel:
    """Return a model with its costs on a kind of machine: runs take `1 / speed` of the time, loads `loading` times."""
    if kind.speed == 1.0 and kind.loading == 1.0:
        return model
    costs, footprint, speed = model.costs, model.footprint, kind.speed
    return replace(
        model,
        costs=replace(
            costs,
            stages=tuple(
                [Grid(one.lengths, tuple([_quicker(curve, speed) for curve in one.curves])) for one in costs.stages]
            ),
            lookups={stage: _quicker(curve, speed) for stage, curve in costs.lookups.items()},
            load_seconds=costs.load_seconds * kind.loading,
        ),
        footprint=replace(
            footprint,
            seconds=tuple([seconds * kind.loading for seconds in footprint.seconds]),
            gains=tuple([seconds / speed for seconds in footprint.gains]),
            fixed=footprint.fixed * kind.loading,
        ),
    )


def least_work(model: ClusterModel, policy: PolicyConfig) -> float:
    """Return the mean seconds of a worker that a request takes in the largest batch that may form."""
    spec = model.served.spec
    batch = min(spec.max_batch, policy.max_batch or spec.max_batch)
    return model.mean_seconds(batch) / batch


def _quicker(curve: Curve, speed: float) -> Curve:
    return Curve(curve.batches, tuple([seconds / speed for seconds in curve.seconds]))
