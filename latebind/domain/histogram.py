"""Counts of values in seconds by upper bound. Pure."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

SECONDS_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip


class Histogram:
    """Counts of values in seconds by upper bound; the last count is of all values above the last bound."""

    def __init__(self, bounds: Sequence[float] = SECONDS_BUCKETS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value in seconds."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_all(self, values: list[float]) -> None:
        """Count many values in seconds, in a fraction of the time that `add` would take; sorts `values`."""
        self._sum = sum(values, self._sum)
        values.sort()
        before = 0
        for place, bound in enumerate(self._bounds):
            up_to = bisect_right(values, bound, before)
            self._counts[place] += up_to - before
            before = up_to
        self._counts[-1] += len(values) - before

    def snapshot(self) -> dict[str, Any]:
        """Return bounds, counts (one more than bounds), sum and count as plain types."""
        return {"le": list(self._bounds), "counts": list(self._counts), "sum": self._sum, "count": sum(self._counts)}
