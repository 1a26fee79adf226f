"""The times of all requests, past and future: known to a simulation alone. Pure."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from math import inf

from latebind.residency.model_state import ModelState


class RequestTimes:
    """The times (seconds, ascending) of all requests for each model."""

    def __init__(self, times: Mapping[str, Sequence[float]]) -> None:
        self._times = times

    def next_use(self, model: ModelState, now: float) -> float:
        """Return the time of the oldest request that waits for a model, else of its next request, else infinity."""
        times = self._times.get(model.name, ())
        place = bisect_right(times, now) - model.waiting
        return times[place] if place < len(times) else inf
