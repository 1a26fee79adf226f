"""The sides that are compared: eviction policies, and the bounds that stand in the same tables."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from latebind.domain.config import ResidencyConfig
from latebind.domain.costs import Footprint
from latebind.domain.errors import ConfigError
from latebind.residency.policy import make_policy
from latebind.simulation.traces import Request
from research.hardware.sequential import SequentialReplay
from research.mcache.bounds import least_in_pieces, least_streaming, least_whole
from research.policies import EVICTION

TIMES = tuple(0.1 * step for step in range(401))  # seconds, of a distribution of loading times
KNOWN = (0, 1, 4, 16)  # requests that wait and are known

Footprints = Mapping[str, Footprint]


@dataclass(frozen=True, slots=True)
class Cell:
    """The outcome of one hour on one side: mean loading seconds of all requests, and the share of hits.

    `within` is the share of requests that load for no longer than each of `TIMES`. Of a bound only the mean is known.
    """

    loading: float
    hits: float = float("nan")
    within: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """A policy with its settings. `known` requests wait at any time; where it `streams`, models run in a window.

    Where the fixed part is `always` paid, each load takes it, though a part of the model is there. Where `alone`,
    no load goes on beside a run.
    """

    label: str
    config: ResidencyConfig
    known: int = 0
    streams: bool = True
    always: bool = False
    alone: bool = False

    def cell(self, requests: Sequence[Request], footprints: Footprints, budget: int) -> Cell | None:
        """Simulate the policy; None if a model cannot run in this much memory."""
        if self.alone or not self.streams:
            footprints = {name: replace(footprint, runs=()) for name, footprint in footprints.items()}
        order = SequentialReplay(budget, footprints, make_policy(self.config), streams=self.streams, always=self.always)
        try:
            served = order.run(requests, self.known)
        except ConfigError:
            return None
        order.memory.check()
        seconds = np.array([one.seconds for one in served])
        within = np.searchsorted(np.sort(seconds), np.array(TIMES), side="right") / len(seconds)
        return Cell(float(seconds.mean()), sum(one.hit for one in served) / len(served), tuple(within.tolist()))


class Bound(Enum):
    """A lower bound for any policy, even if it knows all requests."""

    WHOLE = "least, whole models"
    PIECES = "bound, all of a model to run"
    STREAMING = "bound, streaming"

    @property
    def label(self) -> str:
        """Its name in tables."""
        return self.value

    def cell(self, requests: Sequence[Request], footprints: Footprints, budget: int) -> Cell | None:
        """Return the bound; None if a model cannot run in this much memory."""
        least = LEAST[self]([request.model for request in requests], footprints, budget)
        return Cell(least / len(requests)) if np.isfinite(least) else None


LEAST: Mapping[Bound, Callable[[Sequence[str], Footprints, int], float]] = {
    Bound.WHOLE: least_whole,
    Bound.PIECES: least_in_pieces,
    Bound.STREAMING: least_streaming,
}
Side = Policy | Bound


def policy(name: str, label: str = "", *, known: int = 0, streams: bool = True, **settings: Any) -> Policy:
    """Return a side by the name of its policy; `settings` are those of `ResidencyConfig`."""
    return Policy(label or name, ResidencyConfig(policy=EVICTION[name], **settings), known, streams)


LRU, LFU, IAM, LATE, RATES = (policy(name) for name in ("lru", "lfu", "iam", "late", "late-oracle"))
WHOLE = policy("late", "late, whole models", stages=False)
RESIDENT = policy("late", "late, all of a model to run", streams=False)
WAITING = max(KNOWN)
ABLATED = (
    *(LRU, LATE, RESIDENT, WHOLE),
    Policy("late, the fixed part at each load", ResidencyConfig(policy="late"), always=True),
    Policy("late, loads never beside runs", ResidencyConfig(policy="late"), alone=True),
    policy("late", f"late, {WAITING} wait", known=WAITING),
    policy("late", f"late, whole models, {WAITING} wait", known=WAITING, stages=False),
    policy("late", "late, window 60 s", window=60.0),
    policy("late", "late, window 3,600 s", window=3600.0),
)
