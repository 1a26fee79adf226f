"""When a model will be asked for again, from when it was asked for before (mCache, section 4.3.2). Pure.

Each class is told of requests and returns a gap: the seconds that are expected to pass until the next request. All are
aged: whoever has not been asked for in a long time is not expected soon. Times never go back.
"""

from collections import deque
from math import exp, inf
from typing import Protocol

SHORTEST = 1e-6  # seconds: requests at the same time do not make a gap of nothing
KEPT = 64  # requests of one model that a window remembers: more tell no more about its rate


class Gaps(Protocol):
    """An estimator of the seconds to the next request."""

    def heard(self, name: str, now: float) -> None:
        """Hear that a request for model `name` has come."""

    def gap(self, name: str, now: float) -> float:
        """Return the seconds that are expected to pass until the next one, above 0."""


class WindowedGaps:
    """A rate over the last `window` seconds; the gap is its inverse, or the time since the last request if longer."""

    def __init__(self, window: float) -> None:
        self._window = window
        self._times: dict[str, deque[float]] = {}
        self._begun: float | None = None

    def heard(self, name: str, now: float) -> None:
        """Remember the time."""
        if self._begun is None:
            self._begun = now
        self._times.setdefault(name, deque(maxlen=KEPT)).append(now)

    def gap(self, name: str, now: float) -> float:
        """Return the observed span over the number of requests in it; one that was never seen may come in a window."""
        times = self._times.get(name)
        if times is None or self._begun is None:
            return self._window
        since = now - times[-1]
        while len(times) > 1 and now - times[0] > self._window:
            times.popleft()
        span = now - times[0] if len(times) == KEPT else min(self._window, now - self._begun)
        return max(span / len(times), since, SHORTEST)


class MovingGaps:
    """The exponentially weighted mean of gaps, the newest with weight `alpha`, or the time since the last if longer."""

    def __init__(self, alpha: float, unseen: float) -> None:
        self._alpha = alpha
        self._unseen = unseen
        self._seen: dict[str, tuple[float, float]] = {}  # the time of the last request and the mean gap

    def heard(self, name: str, now: float) -> None:
        """Take the gap into the mean; the first request of a model leaves it at `unseen` seconds."""
        seen = self._seen.get(name)
        if seen is None:
            self._seen[name] = now, self._unseen
            return
        last, mean = seen
        self._seen[name] = now, mean + self._alpha * (now - last - mean)

    def gap(self, name: str, now: float) -> float:
        """Return the longer of mean and time since the last request."""
        last, mean = self._seen.get(name, (now, self._unseen))
        return max(mean, now - last, SHORTEST)


class DiscountedGaps:
    """The rate of a Poisson process that drifts: requests are forgotten at the rate 1 / `tau` (seconds).

    The posterior mean under a Gamma prior that is worth `prior` requests in `tau` seconds of observation: it tells
    apart what was never seen from what was, and weighs little beside either.
    """

    def __init__(self, tau: float, prior: float = 0.1) -> None:
        self._tau = tau
        self._prior = prior
        self._seen: dict[str, tuple[float, float]] = {}  # the time of the last request and the count as of then
        self._begun = inf

    def heard(self, name: str, now: float) -> None:
        """Count it."""
        self._begun = min(self._begun, now)
        last, count = self._seen.get(name, (now, 0.0))
        self._seen[name] = now, count * exp((last - now) / self._tau) + 1.0

    def gap(self, name: str, now: float) -> float:
        """Return the inverse of the rate."""
        last, count = self._seen.get(name, (now, 0.0))
        seen = 1.0 - exp(min(self._begun - now, 0.0) / self._tau)  # how much of `tau` was observed
        return self._tau * (seen + self._prior) / (count * exp((last - now) / self._tau) + self._prior)
