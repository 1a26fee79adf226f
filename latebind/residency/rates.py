"""When a model will be asked for again, from when it was asked for before (mCache, section 4.3.2). Pure.

Each class is told of requests and returns a gap: the seconds that are expected to pass until the next request. All are
aged: whoever has not been asked for in a long time is not expected soon. Times never go back.
"""

from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf
from typing import Protocol

SHORTEST = 1e-6  # seconds: requests at the same time do not make a gap of nothing
KEPT = 64  # requests of one model that a window remembers: more tell no more about its rate

GAPS = tuple([2.0**place for place in (*range(3, -8, -1), -8, -10, -12, -14)])  # windows; finer steps change nothing
LIKELY = 2.0**-8  # windows: shorter gaps are taken to be rare, by the square
_WEIGHTS = [min(1.0, gap / LIKELY) ** 2 for gap in GAPS]
PRIOR = tuple([weight / sum(_WEIGHTS) for weight in _WEIGHTS])  # how likely each is, of a model nobody knows
HABIT = 500  # requests that a habit reaches back
NEW = 0.01  # share of a habit that the model has never shown
FADED = -50.0  # a gap that is less likely than the longest by so many powers of e counts for nothing


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


@dataclass(slots=True)
class Belief:
    """How likely each of some mean gaps is: since the `last` request, and as a `habit` over `count` of them.

    A request that came `since` is not weighed yet.
    """

    last: float
    count: int
    shares: Sequence[float]
    habit: Sequence[float]
    since: float | None = None


class JumpingGaps:
    """A rate that stays for a while and then jumps, mostly to one that the model has had before; by Bayes' rule.

    Of each model it is known how likely each of some mean `gaps` is (windows, the longest first), and of one that
    nobody knows it is `prior`. A request makes those likely that are as long as the silence before it, and short ones
    become ever less so while there is no other. With every request the rate jumps with probability `jump`, to one of
    the model's habit: what it was on average, and in the beginning any. So bursts count at once and are soon over, and
    a constant rate is known ever better.
    """

    def __init__(
        self, window: float, jump: float, *, gaps: Sequence[float] = GAPS, prior: Sequence[float] = PRIOR
    ) -> None:
        self._jump = jump
        self._rates = tuple([1.0 / (gap * window) for gap in gaps])
        self._off = tuple([self._rates[0] - rate for rate in self._rates])  # how far they are from the lowest
        self._prior: Sequence[float] = tuple(prior)
        self._beliefs: dict[str, Belief] = {}
        self._begun: float | None = None

    def heard(self, name: str, now: float) -> None:
        """Take note of the time. It is weighed when somebody asks, or comes again: a load need not wait for that."""
        if self._begun is None:
            self._begun = now
        belief = self._beliefs.get(name)
        if belief is None:
            belief = self._beliefs[name] = Belief(self._begun, 0, self._prior, self._prior)
        elif belief.since is not None:
            self._weigh(belief, belief.since)
        belief.since = now

    def _weigh(self, belief: Belief, now: float) -> None:
        """Weigh gaps by how well they explain the silence before a request: of the first one, since the start."""
        silence = now - belief.last
        weighed = [
            share * rate * exp(off * silence)
            for share, rate, off in zip(belief.shares, self._rates, self._off, strict=True)
        ]
        belief.last, belief.count, belief.since = now, min(belief.count + 1, HABIT), None
        self._jumped(belief, weighed)

    def _jumped(self, belief: Belief, weighed: Sequence[float]) -> None:
        """Take what explains the last silence into the habit, and have the rate stay or jump there."""
        total, newest = sum(weighed), 1.0 / (belief.count + 1)
        kept, shown, new = 1.0 - newest, newest * (1.0 - NEW) / total, newest * NEW
        stays, jumps = (1.0 - self._jump) / total, self._jump
        shares: list[float] = []
        habit: list[float] = []
        for was, weight, likely in zip(belief.habit, weighed, self._prior, strict=True):
            share = kept * was + shown * weight + new * likely
            habit.append(share)
            shares.append(stays * weight + jumps * share)
        belief.shares, belief.habit = array("d", shares), array("d", habit)

    def gap(self, name: str, now: float) -> float:
        """Return the inverse of the mean rate of those that explain the silence until now, the longest best."""
        belief = self._beliefs.get(name)
        if belief is None:
            shares, silence = self._prior, 0.0 if self._begun is None else now - self._begun
        else:
            if belief.since is not None:
                self._weigh(belief, belief.since)
            shares, silence = belief.shares, now - belief.last
        total = rates = 0.0
        for share, rate, off in zip(shares, self._rates, self._off, strict=True):
            fading = off * silence
            if fading < FADED:
                break
            left = share * exp(fading)
            total += left
            rates += left * rate
        return total / rates


class KnownGaps:
    """Mean gaps that somebody has told: of a model that is not among them, infinite."""

    def __init__(self, gaps: Mapping[str, float]) -> None:
        self._gaps = gaps

    def heard(self, name: str, now: float) -> None:
        """Learn nothing."""

    def gap(self, name: str, now: float) -> float:
        """Return what was told."""
        del now
        return self._gaps.get(name, inf)
