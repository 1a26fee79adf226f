"""The pace of a machine that others share: its speed changes within seconds, by a third and more.

So before each block, the serial engine answers some requests one after another. The time that they take is the pace:
arrivals and deadlines are scaled to it, and results are given at the mean pace of the whole run.
"""

import numpy as np

from latebind.domain.config import ServedModel
from research.live.asked import Asked
from research.live.sides import alone

WARM_UP = 40


class Pace:
    """Measures the pace by asking the serial engine, each time with the same rows."""

    def __init__(self, serial: Asked, requests: int, typical: float) -> None:
        self._serial = serial
        self._requests = requests
        self._typical = typical
        self._taken: list[float] = []

    @classmethod
    async def of(cls, serial: Asked, served: ServedModel, seconds: float) -> "Pace":
        """Find how many requests take `seconds`, and by profile the mean of all rows over the mean of these."""
        rows = serial.rows
        requests = max(WARM_UP // 4, round(seconds / await serial.saturate(WARM_UP, 1)))
        paced = [rows.lengths_of(row) for row in range(1, requests + 1)]  # between the first and the last asked for
        return cls(serial, requests, alone(served, rows.lengths()) / alone(served, paced))

    async def take(self) -> float:
        """Return the seconds per request now, one after another."""
        rows = self._serial.rows
        rows.next, following = 0, rows.next
        self._taken.append(self._typical * await self._serial.saturate(self._requests, 1))
        rows.next = following
        return self._taken[-1]

    @property
    def mean(self) -> float:
        """The mean of all paces taken so far, in seconds per request."""
        return float(np.mean(self._taken))
