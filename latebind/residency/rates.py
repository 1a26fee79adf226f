"""When a model will be asked for again, from when it was asked for before (mCache, section 4.3.2). Pure.

Each class is told of requests and returns a gap: the seconds that are expected to pass until the next request. All are
aged: whoever has not been asked for in a long time is not expected soon. Times never go back.
"""

from collections import deque
from math import exp
from typing import Protocol

SHORTEST = 1e-6  # seconds: requests at the same time do not make a gap of nothing
LONGEST = 50.0  # means of silence: past that all are gone alike, and none is infinite
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
        """Return the longer of the mean and the time since the last request."""
        last, mean = self._seen.get(name, (now, self._unseen))
        return max(mean, now - last, SHORTEST)


class FadingGaps(MovingGaps):
    """A mean of gaps as above, into which the time since the last request counts as a gap where it is longer.

    Each request is taken to be the last with probability `last`: requests of a constant rate are as rare as the silence
    after them is long, exp(-silence / mean), and past some means of it the model is more likely to have been given up.
    The gap is then the mean over the probability that it has not.
    """

    def __init__(self, alpha: float, unseen: float, last: float) -> None:
        super().__init__(alpha, unseen)
        self._odds = last / (1.0 - last)

    def gap(self, name: str, now: float) -> float:
        """Return the mean over the probability that the model is still asked for."""
        last, mean = self._seen.get(name, (now, self._unseen))
        silence = now - last
        if silence > mean:
            mean += self._alpha * (silence - mean)
        mean = max(mean, SHORTEST)
        return mean * (1.0 + self._odds * exp(min(silence / mean, LONGEST)))
