"""What learned caches let a scheduler hope for: how many answers come in how many seconds, from any stage on."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from latebind.batching.pace import Pace
from latebind.domain.costs import ModelCosts
from latebind.domain.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Prospect:
    """So many `answers` are expected after so many seconds of a batch that goes on from a stage."""

    answers: float
    seconds: float
    rate: float  # the answers a second


@dataclass(frozen=True, slots=True)
class Shares:
    """What a request costs a worker until somebody may leave, in batches of up to so many.

    `by_size` has, beside the cost, by how much it is dearer than the least of batches that a worker takes.
    `enough` is the smallest of these sizes that costs nearly the least of theirs. `answered` are the requests a second
    that a worker answers at most: those that leave early need no more, and each stage runs the batches best for it.
    """

    by_size: list[tuple[int, float, float]]
    enough: int
    answered: float


@dataclass(frozen=True, slots=True)
class Chances:
    """The share of requests that have their answer after so many seconds, ascending."""

    seconds: list[float]
    shares: list[float]

    def within(self, slack: float) -> float:
        """Return the share that has its answer within `slack`."""
        place = bisect_right(self.seconds, slack)
        return self.shares[place - 1] if place else 0.0

    def least_slack(self, share: float) -> float:
        """Return the seconds within which at least this share has its answer."""
        return self.seconds[min(bisect_left(self.shares, share), len(self.seconds) - 1)] if share > 0.0 else 0.0


@dataclass(slots=True)
class _Known:
    """What has been worked out at one pace."""

    changes: int = 0
    prospects: dict[tuple[int, int], list[Prospect]] = field(default_factory=dict)
    best: dict[tuple[int, int], Prospect] = field(default_factory=dict)
    shares: dict[tuple[int, int, int], Shares] = field(default_factory=dict)
    chances: dict[int, Chances] = field(default_factory=dict)
    work: dict[int, float] = field(default_factory=dict)
    ends: tuple[tuple[float, ...], tuple[float, ...]] | None = None


NEARLY = 1.02  # times the least seconds a request


class Exits:
    """Who leaves where, by the hit rates of a model whose stages all run once. Seconds are as launches take by now.

    Hit rates are shares of all requests, from samples that ran the whole chain: correlated hits are counted right.
    """

    def __init__(self, spec: ModelSpec, costs: ModelCosts, pace: Pace) -> None:
        self._spec = spec
        self._costs = costs
        self._pace = pace
        self.alive = alive(spec, costs)
        self._ends = [i for i in range(spec.stages) if costs.hit_rates.get(i, 0.0) > 0.0 or i + 1 == spec.stages]
        self._known = _Known()

    @property
    def some(self) -> bool:
        """Whether anybody leaves early."""
        return len(self._ends) > 1

    def next(self, stage: int, batch: int) -> Prospect:
        """Return what comes of a batch that goes on from before `stage` until somebody may leave."""
        found = self._now().prospects.get((stage, batch))
        return (found or self._prospects(stage, batch))[0]

    def best(self, stage: int, batch: int) -> Prospect:
        """Return the same up to that later place at which the answers a second are the most.

        That is the index of Gittins (1979): to work where it is the greatest keeps the sum of waiting the least, where
        jobs end at random and nothing is lost by leaving one for another.
        """
        found = self._now().best.get((stage, batch))
        if found is None:
            found = max(self._prospects(stage, batch), key=lambda prospect: prospect.rate)
            self._known.best[stage, batch] = found
        return found

    @property
    def ends(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The seconds after which one request alone may leave, ascending, and the share of requests that does there."""
        known = self._now()
        if known.ends is None:
            prospects = self._prospects(0, 1)
            left = [0.0, *(prospect.answers for prospect in prospects)]
            known.ends = (
                tuple([prospect.seconds for prospect in prospects]),
                tuple([after - before for before, after in pairwise(left)]),
            )
        return known.ends

    def all(self, stage: int, batch: int) -> Prospect:
        """Return what comes of a batch that goes on to the end, losing those who leave."""
        return self._prospects(stage, batch)[-1]

    def work(self, most: int) -> float:
        """Return the seconds of a worker that a request takes on average, of which few run the later stages.

        Each stage runs the batches of at most so many that are best for it: who rests there is joined by others.
        """
        found = self._now().work.get(most)
        if found is None:
            found = 0.0
            for i in range(self._spec.stages):
                found += self.alive[i] * min([self._step(i, size) / size for size in sizes(most)])
            self._known.work[most] = found
        return found

    def shares(self, stage: int, limit: int, most: int) -> Shares:
        """Return what requests at a stage cost in batches of 1, 2, 4, ... and `limit`, where a worker takes `most`."""
        found = self._now().shares.get((stage, limit, most))
        if found is None:
            costs = {size: self.next(stage, size).seconds / size for size in {*sizes(limit), *sizes(most)}}
            least = min(costs[size] for size in sizes(most))
            enough = NEARLY * min(costs[size] for size in sizes(limit))
            found = self._known.shares[stage, limit, most] = Shares(
                [(size, costs[size], costs[size] - least) for size in sizes(limit)],
                next(size for size in sizes(limit) if costs[size] <= enough),
                1.0 / work if (work := self.work(most)) > 0.0 else inf,
            )
        return found

    def chances(self, batch: int) -> Chances:
        """Return how likely answers are in time in a batch that begins now and goes through."""
        found = self._now().chances.get(batch)
        if found is None:
            prospects = self._prospects(0, batch)
            seconds, shares = [one.seconds for one in prospects], [one.answers / batch for one in prospects]
            found = self._known.chances[batch] = Chances(seconds, shares)
        return found

    def _prospects(self, stage: int, batch: int) -> list[Prospect]:
        """Return one for each place at which somebody may leave. Later stages run as many as are left on average."""
        found = self._now().prospects.get((stage, batch))
        if found is None:
            found, seconds = [], 0.0
            for i in range(stage, self._spec.stages):
                left = max(1, round(batch * self.alive[i] / self.alive[stage]))
                seconds += self._step(i, left)
                if i in self._ends:
                    answers = batch * (1.0 - self.alive[i + 1] / self.alive[stage])
                    found.append(Prospect(answers, seconds, answers / seconds if seconds else inf))
            self._known.prospects[stage, batch] = found
        return found

    def _step(self, stage: int, batch: int) -> float:
        return self._pace.factor * self._costs.step(stage, batch) + self._pace.launch

    def _now(self) -> _Known:
        """Forget what was worked out where launches take longer or shorter by now."""
        if self._pace.changes != self._known.changes:
            self._known = _Known(self._pace.changes)
        return self._known


def sizes(most: int) -> list[int]:
    """Return the batch sizes that are compared: 1, 2, 4, ... and the largest."""
    return [*(1 << exponent for exponent in range((most - 1).bit_length())), most]


def alive(spec: ModelSpec, costs: ModelCosts) -> list[float]:
    """Return which share of requests runs each stage, and 0 behind the last."""
    shares = [1.0]
    for stage in range(spec.stages - 1):
        shares.append(max(1e-6, shares[-1] - costs.hit_rates.get(stage, 0.0)))
    return [*shares, 0.0]
