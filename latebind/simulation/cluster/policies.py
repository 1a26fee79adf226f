"""What may be plugged into a cluster: who gets a request, where models belong, how many machines are up.

A plug-in sees figures of the whole cluster and answers; it changes nothing itself. Models and machines go by their
number in the `Fleet`, from 0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from latebind.simulation.cluster.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Demand:
    """What was asked for in the last period: `rates` (models,) in requests a second, and `late`, the share too late.

    `slack` is the lowest of the machines' mean slack at admission, in shares of the deadline.
    """

    rates: NDArray[np.float64]
    late: float
    slack: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Where models belong: `homes[i]` are the machines of model i, the first of them before the others."""

    homes: tuple[tuple[int, ...], ...]


class Placer(Protocol):
    """Says where models belong. Asked at the start and every so often; None leaves things as they are."""

    def place(self, fleet: Fleet, up: Sequence[int], demand: Demand, now: float) -> Placement | None:
        """Return the homes of all models among the machines that are up, or None for no change."""


class Autoscaler(Protocol):
    """Says how many machines should be up."""

    def wanted(self, fleet: Fleet, up: int, demand: Demand, now: float) -> int:
        """Return the number of machines wanted, of those that the fleet has."""


ROUTERS = ("random", "round-robin", "least-loaded", "two-choices", "home")
"""Who gets a request. `home`: the machine among the model's homes with the least work before it; where it could not
answer in time, any that has the model; the others ignore placement. Fixed rules, for they run in the innermost loop."""
