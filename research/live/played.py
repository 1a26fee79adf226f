"""Outcomes of requests that were sent at given times, live or simulated. Numbers only."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Played:
    """N requests in the order of sending.

    `seconds` are those between the engine's hearing of a request and its answer, inf where it was refused or dropped;
    `early` tells who left before the last stage, `alike` whose answer is the right one; simulated, nobody knows.
    """

    seconds: Seconds
    early: Flags
    alike: Flags | None = None

    @property
    def answered(self) -> Flags:
        """Which requests were answered, in time or not."""
        return np.isfinite(self.seconds)

    @property
    def fidelity(self) -> float:
        """The share of answers that are right; NaN if there are none or if that is not known."""
        right = None if self.alike is None else self.alike[self.answered]
        return nan if right is None or not len(right) else float(right.mean())

    def at_pace(self, slower: float) -> "Played":
        """Return the same with seconds divided by `slower`, how many times slower than usual the machine was."""
        return Played(self.seconds / slower, self.early, self.alike)


def joined(parts: Sequence[Played]) -> Played:
    """Return several outcomes joined, one after another."""
    alike = [part.alike for part in parts if part.alike is not None]
    return Played(
        np.concatenate([part.seconds for part in parts]),
        np.concatenate([part.early for part in parts]),
        np.concatenate(alike) if len(alike) == len(parts) else None,
    )
