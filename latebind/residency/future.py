"""When models will be asked for: known to a simulation alone. Pure."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf

from latebind.residency.held import Held


class Future:
    """The times (seconds, ascending) of all requests for each model."""

    def __init__(self, times: Mapping[str, Sequence[float]]) -> None:
        self._times = times

    def next_use(self, model: Held, now: float) -> float:
        """Return when the oldest request came that waits for a model, or when the next one will; or infinity."""
        times = self._times.get(model.name, ())
        place = bisect_right(times, now) - model.waiting
        return times[place] if place < len(times) else inf
