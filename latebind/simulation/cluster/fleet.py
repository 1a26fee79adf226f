"""What a cluster is made of and what it serves: kinds of machines, models, and the requests that come."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from latebind.domain.config import PolicyConfig, ResidencyConfig, ServedModel
from latebind.domain.errors import ConfigError


@dataclass(frozen=True, slots=True)
class MachineKind:
    """Machines of one kind: `memory` in bytes for models, so many `workers` at once.

    Costs of models are those of a machine of `speed` 1; one of speed 2 takes half the time. Loads take `loading` times
    what the footprint says. `price` is that of an hour, in any unit. One that an autoscaler wants is up `startup`
    seconds later; who dies is back when its fault says so.
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
    """One model that the cluster serves: what a machine's scheduler knows of it, and how long an answer may take."""

    served: ServedModel
    allowed: float  # seconds


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a run, in the order of time: `times` in seconds (N,) float64 and `models` (N,) int32.

    `leaves` (N,) int16 is the stage after which each leaves: the last one, or that of a learned cache that knows it.
    One request stands for `weight` of the traffic that was asked for, where it is a sample of it.
    """

    times: NDArray[np.float64]
    models: NDArray[np.int32]
    leaves: NDArray[np.int16]
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.times)


@dataclass(frozen=True, slots=True)
class Fault:
    """Machine number `machine` dies at `time` and is back, with nothing in memory, after `away` seconds."""

    time: float
    machine: int
    away: float


@dataclass(frozen=True, slots=True)
class Fleet:
    """The machines, each by its kind, and how each of them decides.

    With a router that knows them, `hop` is the seconds from the router to a machine and back, together.
    """

    machines: tuple[MachineKind, ...]
    models: tuple[ClusterModel, ...]
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    residency: ResidencyConfig = field(default_factory=ResidencyConfig)
    hop: float = 0.0
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Played:
    """What became of each request of a run, in the order in which they came.

    `ended` (N,) float64 seconds; `outcome` (N,) int8, the place of the `Outcome` in its enumeration; `machine` (N,)
    int32, -1 where none took it. `started` is how many machines were up or starting at each of `marks` (seconds),
    `loads` and `loaded` how many times and for how many seconds anything was loaded, and `busy` (machines,) the seconds
    that workers of each ran.
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
