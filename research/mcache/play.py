"""Hours of requests and the sides that they are played to, one request after another (mCache, section 6).

An hour is given by workload, half of the trace and seed, so any can be made again. Beside eviction policies stand the
bounds of `bounds.py`. Queues, loads beside runs and clients that wait for their replies are in `crowd.py`, live ones
in `live.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Any

import numpy as np

from latebind.bench.rounds import Progress, in_parallel
from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError
from latebind.residency.policy import make_policy
from research.hardware.sequential import SequentialReplay
from research.mcache.bounds import least_streaming, least_whole
from research.mcache.models import Storage, slowest_first
from research.mcache.traces import HTTP, REQUESTS, Pairing, Request, Service, halves, hour_of, invocations, paired
from research.policies import EVICTION

KNOWN = (0, 1, 4, 16)  # requests that wait and are known

Footprints = Mapping[str, Footprint]


@dataclass(frozen=True, slots=True)
class Scene:
    """Requests of an `hour` from a half of the trace: for the seven models as `pairing` says, or each for its own.

    With a model for each service, `triggers` say which services there are.
    """

    hour: tuple[Service, ...]
    half: int
    seed: int
    pairing: Pairing | None
    storage: Storage
    requests: int
    triggers: tuple[str, ...] = (HTTP,)

    @property
    def workload(self) -> str:
        """What distinguishes it from others of the same half and seed."""
        return " and ".join(self.triggers) if self.pairing is None else str(self.pairing)

    def made(self) -> tuple[list[Request], dict[str, Footprint]]:
        """Return the requests in order of time, and the models."""
        random = Random(f"{self.half} {self.seed}")
        if self.pairing is None:
            footprints = self.storage.many(len(self.hour), random)
            models = list(footprints)
        else:
            footprints = self.storage.seven()
            models = paired(self.hour, slowest_first(footprints), self.pairing, random)
        return invocations(self.hour, models, random, self.requests), footprints


@dataclass(frozen=True, slots=True)
class Cell:
    """The outcome of one hour on one side: mean loading seconds of all requests, and the share of hits.

    Of a bound only the mean is known.
    """

    loading: float
    hits: float = float("nan")


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its settings; `known` requests wait at any time."""

    label: str
    config: ResidencyConfig
    known: int = 0

    def cell(self, requests: Sequence[Request], footprints: Footprints, budget: int) -> Cell | None:
        """Simulate the policy; None if a model cannot run in this much memory."""
        order = SequentialReplay(budget, footprints, make_policy(self.config))
        try:
            served = order.run(requests, self.known)
        except ConfigError:
            return None
        order.memory.check()
        return Cell(float(np.mean([one.seconds for one in served])), sum(one.hit for one in served) / len(served))


class Bound(Enum):
    """A lower bound for any policy, even if it knows all requests."""

    WHOLE = "least, whole models"
    STREAMING = "bound, streaming"

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.value

    def cell(self, requests: Sequence[Request], footprints: Footprints, budget: int) -> Cell | None:
        """Return the bound; None if a model cannot run in this much memory."""
        bound = least_whole if self is Bound.WHOLE else least_streaming
        least = bound([request.model for request in requests], footprints, budget)
        return Cell(least / len(requests)) if np.isfinite(least) else None


Side = Policy | Bound


def policy(name: str, label: str = "", *, known: int = 0, **settings: Any) -> Policy:
    """Return a side by the name of its policy; `settings` are those of `ResidencyConfig`."""
    return Policy(label or name, ResidencyConfig(policy=EVICTION[name], **settings), known)


LRU, LFU, IAM, LATE, RATES = (policy(name) for name in ("lru", "lfu", "iam", "late", "late-oracle"))
WHOLE = policy("late", "late, whole models", stages=False)


@dataclass(frozen=True, slots=True)
class Case:
    """Sides in a workload with so much memory."""

    workload: str
    share: float


Cells = Sequence[Cell | None]  # one for each half and seed, in this order; None where a model does not fit
Played = Mapping[Case, Mapping[Side, Cells]]


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is played: seeds on each half of the trace, workloads, shares of memory, processes (0: all cores).

    Without `shares` each part has those of the paper.
    """

    services: tuple[Service, ...]
    seeds: int = 10
    pairings: tuple[Pairing, ...] = tuple(Pairing)
    shares: tuple[float, ...] = ()
    storage: Storage = field(default_factory=Storage)
    requests: int = REQUESTS
    processes: int = 0

    @property
    def execution(self) -> float:
        """Seconds that a request takes beside loading."""
        return self.storage.execution

    def sevens(self) -> list[Scene]:
        """Return an hour for each workload, half and seed."""
        return [scene for pairing in self.pairings for scene in self._hours(pairing, min_requests=self.requests)]

    def many(self, triggers: tuple[str, ...]) -> list[Scene]:
        """Return an hour of many models for each half and seed: hours are not laid over one another."""
        return self._hours(None, triggers, min_requests=1)

    def _hours(self, pairing: Pairing | None, triggers: tuple[str, ...] = (HTTP,), *, min_requests: int) -> list[Scene]:
        """Return scenes in which so many requests are made if the trace has as many (`hour_of`)."""
        return [
            Scene(
                tuple(hour_of(some, Random(f"hour {half} {seed}"), min_requests)),
                half,
                seed,
                pairing,
                self.storage,
                self.requests,
                triggers,
            )
            for half, some in enumerate(halves(self.services, triggers))
            for seed in range(self.seeds)
        ]

    def play(
        self, scenes: Sequence[Scene], sides: Sequence[Side], shares: Sequence[float], on_progress: Progress
    ) -> Played:
        """Play all sides in all scenes with each share of memory."""
        tasks = [Task(scene, tuple(sides), self.shares or tuple(shares)) for scene in scenes]
        named = "{0.scene.workload}, half {0.scene.half}, seed {0.scene.seed}".format
        cells = in_parallel(play, tasks, name=named, progress=on_progress, processes=self.processes)
        found: dict[Case, dict[Side, list[Cell | None]]] = {}
        for task, some in zip(tasks, cells, strict=True):
            for (share, side), cell in some.items():
                found.setdefault(Case(task.scene.workload, share), {}).setdefault(side, []).append(cell)
        return found


@dataclass(frozen=True, slots=True)
class Task:
    """One hour, for all sides."""

    scene: Scene
    sides: tuple[Side, ...]
    shares: tuple[float, ...]


def play(task: Task) -> dict[tuple[float, Side], Cell | None]:
    """Play one hour."""
    requests, footprints = task.scene.made()
    total = sum(footprint.size for footprint in footprints.values())
    return {
        (share, side): side.cell(requests, footprints, round(share * total))
        for share in task.shares
        for side in task.sides
    }
