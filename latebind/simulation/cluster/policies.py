"""The interfaces of plug-ins for a simulated cluster: routers, placers and autoscalers.

A plug-in gets figures of the whole cluster and returns a decision. It changes nothing itself. Models and machines are
numbered from 0, in the order of the `Fleet`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from latebind.simulation.cluster.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Demand:
    """What clients asked for in the last period.

    `rates` `(models,)` is in requests a second. `late` is the share of requests that were not answered in time. `slack`
    is the lowest mean slack of any machine: the time that requests had to spare when they were admitted, as a share of
    the time allowed.
    """

    rates: NDArray[np.float64]
    late: float
    slack: float


@dataclass(frozen=True, slots=True)
class Placement:
    """The machines that should hold each model. `homes[i]` are those of model i, the preferred ones first."""

    homes: tuple[tuple[int, ...], ...]


class Placer(Protocol):
    """Decides which machines hold each model. It is asked at the start and then once in each period."""

    def place(self, fleet: Fleet, up: Sequence[int], demand: Demand, now: float) -> Placement | None:
        """Return the homes of all models among the machines that are `up`, or None to leave them as they are."""


class Autoscaler(Protocol):
    """Decides how many machines should be up."""

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        """Return how many machines should be up, at most as many as the fleet has."""


ROUTERS = ("random", "round-robin", "least-loaded", "two-choices", "home")
"""Who gets a request. `home`: the machine among the model's homes with the least work before it; where it could not
answer in time, any that has the model; the others ignore placement. Fixed rules, for they run in the innermost loop."""
