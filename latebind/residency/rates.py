"""Estimators of the time until a model is requested again, from its earlier requests (mCache, section 4.3.2). Pure.

Each class observes requests and returns a gap: the expected seconds until the next request. All of them age: a model
that has not been requested for a long time is not expected soon. Times must not decrease.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import Protocol

SHORTEST = 1e-6  # seconds; the gap between requests at the same time is not 0

GAPS = tuple([2.0**place for place in (*range(3, -8, -1), -8, -10, -12, -14)])  # in windows; finer steps gain nothing
LIKELY = 2.0**-8  # in windows: the prior of shorter gaps falls with their square
_WEIGHTS = [min(1.0, gap / LIKELY) ** 2 for gap in GAPS]
PRIOR = tuple([weight / sum(_WEIGHTS) for weight in _WEIGHTS])  # probability of each gap for an unknown model
HABIT = 500  # requests that a habit reaches back
NEW = 0.01  # share of a habit that stays with the prior: gaps that the model has never shown
FADED = -50.0  # gaps whose probability relative to the longest is below e to this power are ignored


class Gaps(Protocol):
    """An estimator of the seconds to the next request."""

    def observe(self, name: str, now: float) -> None:
        """Note a request for model `name`."""

    def gap(self, name: str, now: float) -> float:
        """Return the expected seconds until the next request, above 0."""


class MovingGap:
    """The exponentially weighted mean of gaps, the newest with weight `alpha`, or the time since the last if longer."""

    def __init__(self, alpha: float, unseen: float) -> None:
        self._alpha = alpha
        self._mean = unseen  # seconds, until there is a gap
        self._last: float | None = None

    def observe(self, now: float) -> None:
        """Note a request."""
        if self._last is not None:
            self._mean += self._alpha * (now - self._last - self._mean)
        self._last = now

    def gap(self, now: float) -> float:
        """Return the longer of the mean and the time since the last request."""
        return max(self._mean, 0.0 if self._last is None else now - self._last, SHORTEST)


@dataclass(slots=True)
class Belief:
    """Probabilities of the mean gaps of one model.

    `shares` are those as of the `last` request, `habit` their average over `count` requests.
    """

    last: float
    count: int
    shares: Sequence[float]
    habit: Sequence[float]


class JumpingGaps:
    """A rate that stays constant for a while and then jumps, mostly to one the model has had before; by Bayes' rule.

    Each model has a probability for each of the mean `gaps` (in windows, the longest first); for an unknown model these
    are `prior`. A request raises the probability of gaps that are as long as the silence before it; during a silence,
    the probability of short gaps falls. With each request the rate jumps with probability `jump`, to a gap drawn from
    the model's habit, which is its average distribution so far and starts as the prior. So a burst counts at once and
    is soon forgotten, and a constant rate is estimated ever better.
    """

    def __init__(
        self, window: float, jump: float, *, gaps: Sequence[float] = GAPS, prior: Sequence[float] = PRIOR
    ) -> None:
        self._jump = jump
        self._rates = tuple([1.0 / (gap * window) for gap in gaps])
        self._off = tuple([self._rates[0] - rate for rate in self._rates])  # the lowest rate minus each rate
        self._prior: Sequence[float] = tuple(prior)
        self._beliefs: dict[str, Belief] = {}
        self._started: float | None = None

    def observe(self, name: str, now: float) -> None:
        """Weigh gaps by how well they explain the silence before a request; before the first one, since the start."""
        if self._started is None:
            self._started = now
        belief = self._beliefs.get(name)
        if belief is None:
            belief = self._beliefs[name] = Belief(self._started, 0, self._prior, self._prior)
        silence = now - belief.last
        weighed = [
            share * rate * exp(off * silence)
            for share, rate, off in zip(belief.shares, self._rates, self._off, strict=True)
        ]
        belief.last, belief.count = now, min(belief.count + 1, HABIT)
        self._update(belief, weighed)

    def _update(self, belief: Belief, weighed: Sequence[float]) -> None:
        """Add the weighed gaps to the habit, and let the rate stay, or jump to a gap of the habit."""
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
        """Return the inverse of the mean rate, given the silence until now, which long gaps explain best."""
        belief = self._beliefs.get(name)
        if belief is None:
            shares, silence = self._prior, 0.0 if self._started is None else now - self._started
        else:
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
