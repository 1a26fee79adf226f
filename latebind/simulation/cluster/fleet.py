"""Describes a cluster and its work: kinds of machines, models, requests, and what became of the requests."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import PolicyConfig, ResidencyConfig, ServedModel
from latebind.domain.errors import ConfigError

UNKNOWN = -1  # in place of an outcome: the run was stopped before the request ended


@dataclass(frozen=True, slots=True)
class MachineKind:
    """A kind of machine, with `memory` bytes for models and `workers` that run batches at the same time.

    The costs of models are given for a machine of `speed` 1. A machine of speed 2 takes half as long. Loading takes
    `loading` times as long as the model's footprint says. `price` is the price of an hour, in any unit. A machine that
    an autoscaler starts is ready after `startup` seconds. This does not apply to a machine that dies: its `Fault` says
    when it is back.
    """

    name: str
    memory: int
    workers: int = 1
    speed: float = 1.0
    loading: float = 1.0
    price: float = 1.0
    startup: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("memory", self.memory), ("workers", self.workers), ("speed", self.speed)):
            if not value > 0:
                raise ConfigError(f"machine kind {self.name!r} has {name} {value}: give more than 0")
        for name, value in (("loading", self.loading), ("startup", self.startup)):
            if not value >= 0:
                raise ConfigError(f"machine kind {self.name!r} has {name} {value}: give 0 or more")


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """A model of the cluster: its description for the schedulers, and the seconds within which each answer is due."""

    served: ServedModel
    allowed: float  # seconds


@dataclass(frozen=True, slots=True)
class Requests:
    """All requests of a run in order of arrival: `times` in seconds `(N,)` float64 and `models` `(N,)` int32.

    `leaves` `(N,)` int16 is the stage after which each request leaves: the stage whose learned cache answers it, or the
    last one. If the requests are a sample of the traffic, each of them stands for `weight` requests.
    """

    times: NDArray[np.float64]
    models: NDArray[np.int32]
    leaves: NDArray[np.int16]
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Fault:
    """Machine number `machine` dies at `time` (seconds) and is back `away` seconds later, with nothing in memory."""

    time: float
    machine: int
    away: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """The machines of a cluster, the models, and the policies that each machine follows.

    `hop` is the time in seconds from the router to a machine and back.
    """

    machines: tuple[MachineKind, ...]
    models: tuple[ClusterModel, ...]
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    hop: float = 0.0
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """What became of each request of a run, in order of arrival.

    `ended` `(N,)` float64 is when each request ended, in seconds; `outcome` `(N,)` int8 is the index of its `Outcome`,
    or `UNKNOWN`, with NaN in `ended`, where the run was stopped before;
    `machine` `(N,)` int32 is the machine that it was sent to, -1 if there was none. `started` is the number of machines
    that were up or starting at each of `marks` (seconds). `loads` counts loads, and `loaded` is how many seconds they
    took. `busy` `(machines,)` is how many seconds the workers of each machine ran.
    """

    requests: Requests
    ended: NDArray[np.float64]
    outcome: NDArray[np.int8]
    machine: NDArray[np.int32]
    marks: NDArray[np.float64]
    started: NDArray[np.int32]
    loads: int
    loaded: float
    busy: NDArray[np.float64]
