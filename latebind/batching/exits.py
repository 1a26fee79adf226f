"""What learned caches let a scheduler expect: how many answers come in how many seconds, from any stage on."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from latebind.batching.pace import Pace
from latebind.domain.costs import ModelCosts
from latebind.domain.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Prospect:
    """The number of `answers` expected after some `seconds` of a batch that goes on from a stage."""

    answers: float
    seconds: float
    rate: float  # answers per second


@dataclass(frozen=True, slots=True)
class Shares:
    """A worker's seconds per request until a member may leave, by batch size.

    `by_size` lists the size, the cost, and the cost above the lowest one of all sizes that a worker takes. `enough` is
    the smallest listed size whose cost is nearly the lowest listed. `answered` is the highest number of requests per
    second that a worker answers: early exits need less work, and each stage runs the batch size that suits it best.
    """

    by_size: list[tuple[int, float, float]]
    enough: int
    answered: float


@dataclass(frozen=True, slots=True)
class Chances:
    """The `shares` of requests that have their answer after `seconds`; both ascend."""

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
    """The results that were computed at one pace."""

    changes: int = 0
    prospects: dict[tuple[int, int], list[Prospect]] = field(default_factory=dict)
    best: dict[tuple[int, int], Prospect] = field(default_factory=dict)
    shares: dict[tuple[int, int, int], Shares] = field(default_factory=dict)
    chances: dict[int, Chances] = field(default_factory=dict)
    work: dict[int, float] = field(default_factory=dict)
    ends: tuple[tuple[float, ...], tuple[float, ...]] | None = None


NEARLY = 1.02  # times the least seconds per request counts as equally good

LATEST = 1 / 200  # weight of the latest request in the share that leaves at an exit
MOVED = 0.1  # change of such a share at which derived figures are recomputed; its standard deviation is at most 0.025
RARE = 0.005  # share below which nobody is expected to leave at an exit


class Exits:
    """Early exits of a model whose stages all run once, by its hit rates. Seconds are corrected by `pace`.

    Hit rates are shares of all requests, taken from samples that ran the whole chain, so correlated hits count right.
    While requests run, what is observed to leave at each exit takes their place: other inputs come than were profiled,
    adaptation changes the caches or stops exits, and a cache may not be in memory.
    """

    def __init__(self, spec: ModelSpec, costs: ModelCosts, pace: Pace) -> None:
        self._spec = spec
        self._costs = costs
        self._pace = pace
        shares = alive(spec, costs)
        self._leaving = {i: min(1.0, costs.hit_rates.get(i, 0.0) / shares[i]) for i in spec.lookups}
        self._then = dict(self._leaving)  # when figures were last derived
        self.moves = 0  # counts changes of the shares that are large enough to recompute derived figures
        self.some = any(share > 0.0 for share in self._leaving.values())  # whether any requests leave early, as built
        self.alive: list[float] = []
        self._ends: list[int] = []
        self._known = _Known()
        self._derive()

    def observe(self, stage: int, reached: int, left: int) -> None:
        """Note that `left` of the requests that ran `stage` had their answer from the learned cache behind it.

        Where lookups run aside, first `reached` are told, with none that left, and later who left, with none reached.
        """
        share = self._leaving[stage]
        share = self._leaving[stage] = min(1.0, max(0.0, share + LATEST * (left - share * reached)))
        then = self._then[stage]
        if abs(share - then) > MOVED or (share < RARE) != (then < RARE):
            self._then = dict(self._leaving)
            self.moves += 1
            self._derive()

    @property
    def changes(self) -> int:
        """Counts changes of pace and shares that are large enough to recompute derived figures."""
        return self._pace.changes + self.moves

    def _derive(self) -> None:
        """Derive the share of requests that runs each stage, with a 0 behind the last, and where some leave."""
        stages, leaving = range(self._spec.stages), self._then
        self.alive = [1.0]
        for i in stages[:-1]:
            self.alive.append(max(1e-6, self.alive[i] * (1.0 - leaving.get(i, 0.0))))
        self.alive.append(0.0)
        self._ends = [i for i in stages if leaving.get(i, 0.0) >= RARE or i + 1 == self._spec.stages]
        self._known = _Known(self.changes)

    def next(self, stage: int, batch: int) -> Prospect:
        """Return the prospect of a batch that goes on from before `stage` until a member may leave."""
        found = self._now().prospects.get((stage, batch))
        return (found or self._prospects(stage, batch))[0]

    def best(self, stage: int, batch: int) -> Prospect:
        """Return the prospect of a batch that goes on to the exit at which the answers per second are the most.

        That rate is the index of Gittins (1979): running the job with the greatest index first minimises the sum of
        waiting times where jobs end at random and switching between them costs nothing.
        """
        found = self._now().best.get((stage, batch))
        if found is None:
            found = max(self._prospects(stage, batch), key=lambda prospect: prospect.rate)
            self._known.best[stage, batch] = found
        return found

    @property
    def ends(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The seconds after which a request alone may leave, ascending, and the share of requests that leave then."""
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
        """Return the prospect of a batch that goes on to the end, with members leaving on the way."""
        return self._prospects(stage, batch)[-1]

    def work(self, most: int) -> float:
        """Return the average seconds that a request takes of a worker, where few requests reach the later stages.

        Each stage runs in its best batch size up to `most`, because requests that rest at a stage are joined by others.
        """
        found = self._now().work.get(most)
        if found is None:
            found = 0.0
            for i in range(self._spec.stages):
                found += self.alive[i] * min([self._step(i, size) / size for size in sizes(most)])
            self._known.work[most] = found
        return found

    def shares(self, stage: int, limit: int, most: int) -> Shares:
        """Return the cost of requests at a stage in batches of 1, 2, 4, ... and `limit`; a worker takes `most`."""
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
        """Return when answers can be expected of a batch that starts now and goes through to the end."""
        found = self._now().chances.get(batch)
        if found is None:
            prospects = self._prospects(0, batch)
            seconds, shares = [one.seconds for one in prospects], [one.answers / batch for one in prospects]
            found = self._known.chances[batch] = Chances(seconds, shares)
        return found

    def _prospects(self, stage: int, batch: int) -> list[Prospect]:
        """Return a prospect for each exit. Later stages run with the number of members that are left on average."""
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
        """Return the cache of results, emptied if pace or shares have changed since they were computed."""
        changes = self._pace.changes + self.moves
        if changes != self._known.changes:
            self._known = _Known(changes)
        return self._known


def sizes(most: int) -> list[int]:
    """Return the batch sizes that are compared: 1, 2, 4, ... and the largest."""
    return [*(1 << exponent for exponent in range((most - 1).bit_length())), most]


def alive(spec: ModelSpec, costs: ModelCosts) -> list[float]:
    """Return the share of requests that run each stage, and a 0 behind the last."""
    shares = [1.0]
    for stage in range(spec.stages - 1):
        shares.append(max(1e-6, shares[-1] - costs.hit_rates.get(stage, 0.0)))
    return [*shares, 0.0]
