"""The plan: the fewest machines of every offer, the cheapest offer, what limits it and how sensitive it is."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np

from latebind.planning.figures import Figures
from latebind.planning.question import AS_ASKED, CHANGES, Change, Offer, Question, Run, fits_in, offers
from latebind.planning.runs import Runs
from latebind.planning.search import FINE, Bracket, fewest
from latebind.simulation.cluster.tables import largest_batch, mean_seconds

SURE = 0.9  # of the least work: requests that end after the last one came are answered beside the others
MOST = 6  # at most this many times the machines that compute or memory need are tried
CURVE = (0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)  # shares of the plan's machines, for a plot


@dataclass(frozen=True, slots=True)
class Row:
    """An offer, the fewest machines that are enough, and their figures by seed.

    Where even `most` machines are not enough, `machines` is None and the figures are those of `most`, for the first
    seed. Where an offer is `dearer` than the plan even with one machine more than `most`, which are too few, nothing
    else was found out about it. `all_in_memory`, of the plan alone, is the number of machines needed if no request
    waits for its model: what compute needs.
    """

    offer: Offer
    most: int
    machines: int | None
    figures: tuple[Figures, ...] = ()
    dearer: bool = False
    all_in_memory: int | None = None

    @property
    def price(self) -> float:
        """The price of all machines for an hour."""
        return self.offer.kind.price * (self.machines or 0)

    @property
    def binds(self) -> str:
        """Whether compute or memory determines the number of machines; a difference within `FINE` does not count.

        Empty where it was not asked.
        """
        if self.all_in_memory is None:
            return ""
        enough = self.machines is not None and self.machines <= (1 + 2 * FINE) * self.all_in_memory
        return "compute" if enough else "memory"


@dataclass(frozen=True, slots=True)
class Point:
    """A number of machines of an offer, and the figures of the first seed."""

    offer: Offer
    machines: int
    figures: tuple[Figures, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A row for each offer, the cheapest that is enough, and its figures under each change.

    A change has no figures where the largest model does not fit any more.
    """

    rows: tuple[Row, ...]
    best: Row | None
    changes: tuple[tuple[Change, tuple[Figures, ...]], ...]
    curve: tuple[Point, ...]
    all_in_memory: tuple[Point, ...]  # of the curve, for the best offer


def make_plan(question: Question, runs: Runs, *, curve: bool = False) -> Plan:
    """Find the plan; with a `curve` also play more and fewer machines than it has."""
    return _Planner(question, runs, curve).plan()


class _Planner:
    def __init__(self, question: Question, runs: Runs, curve: bool) -> None:
        self._question, self._runs = question, runs
        self._memory = sum(model.served.footprint.size for model in question.models)
        self._last = question.seeds * len(CHANGES)  # runs that follow the search
        if curve:
            self._last += (len(question.ways) + 1) * len(CURVE)
        self._curve = curve
        self._first, self._least = self._workers_busy()

    def plan(self) -> Plan:
        some = offers(self._question)
        found = self._fewest(some)
        rows = [self._row(offer, found[offer]) for offer in some]
        enough = [row for row in rows if row.machines is not None]
        if not enough:
            return Plan(tuple(rows), None, (), (), ())
        cheapest = min(enough, key=lambda row: (row.price, row.offer.kind.memory))
        assert cheapest.machines is not None
        without = self._with_all(cheapest.offer)
        best = replace(cheapest, all_in_memory=self._fewest([without], most=cheapest.machines)[without].high)
        rows[rows.index(cheapest)] = best
        changes = tuple([(change, self._changed(best, change)) for change in (AS_ASKED, *CHANGES)])
        return Plan(tuple(rows), best, changes, *(self._curves(best) if self._curve else ((), ())))

    def _fewest(self, some: Sequence[Offer], most: int = 0) -> dict[Offer, Bracket[Offer]]:
        speeds = {offer: offer.kind.workers * offer.kind.speed for offer in some}
        firsts = {offer: ceil(self._first / speed) for offer, speed in speeds.items()}
        mosts = {offer: most or self._limit(offer, alone) for offer, alone in firsts.items()}
        leasts = {offer: max(1, floor(self._least / speed)) for offer, speed in speeds.items()}
        prices = {offer: offer.kind.price for offer in some}
        return fewest(firsts, self._enough, most=mosts, least=leasts, prices=prices)

    def _limit(self, offer: Offer, alone: int) -> int:
        """Return the most machines to try: many times what compute or memory alone need."""
        return self._question.most or MOST * max(alone, ceil(self._memory / offer.kind.memory), 2)

    def _with_all(self, offer: Offer) -> Offer:
        """Return the offer with memory for all models, which load in no time."""
        return replace(offer, kind=replace(offer.kind, memory=max(offer.kind.memory, self._memory), loading=0.0))

    def _workers_busy(self) -> tuple[float, float]:
        """Return how many workers of speed 1 the traffic keeps busy without batches, and at least, with the largest.

        The search starts at the first, and tries nothing below a part of the second: with fewer machines the work of
        those that must be in time does not fit, however it is shared.
        """
        question, requests = self._question, self._question.traffic.requests(seed=0)
        if not len(requests):
            return 1.0, 0.0
        counts, span = np.bincount(requests.models, minlength=len(question.models)), max(requests.times[-1], 1e-9)
        served = [model.served for model in question.models]
        batches = [largest_batch(one, question.policy) for one in served]
        alone = np.array([one.costs.remaining(0, 1) for one in served])
        least = np.array([mean_seconds(one.costs, b) / b for one, b in zip(served, batches, strict=True)])
        return float(alone @ counts / span), SURE * question.target * float(least @ counts / span)

    def _enough(self, probes: Sequence[tuple[Offer, int]], left: int) -> list[bool]:
        """Play the first seed of each probe, and the other seeds of probes that pass the first."""
        doing = f"{len(probes)} offers, {min(n for _, n in probes)} to {max(n for _, n in probes)} machines"
        seeds, target = self._question.seeds, self._question.target
        after = left * seeds + self._last
        asked = [Run(offer, n, 0) for offer, n in probes]
        firsts = self._runs.play(asked, doing, after + len(probes) * (seeds - 1), target=target)
        open_ = [place for place, figures in enumerate(firsts) if self._holds(figures)]
        others = [Run(*probes[place], seed) for place in open_ for seed in range(1, seeds)]
        found = dict(zip(others, self._runs.play(others, doing, after, target=target), strict=True))
        return [
            place in open_ and all(self._holds(found[Run(*probe, seed)]) for seed in range(1, seeds))
            for place, probe in enumerate(probes)
        ]

    def _holds(self, figures: Figures) -> bool:
        return figures.complete and figures.in_time >= self._question.target

    def _row(self, offer: Offer, found: Bracket[Offer]) -> Row:
        if not found.is_closed:
            return Row(offer, found.low, None, dearer=True)
        if found.high is None:
            figures = self._runs.play([Run(offer, found.most, 0)], "the most machines", self._last)
            return Row(offer, found.most, None, tuple(figures))
        return Row(offer, found.most, found.high, self._point(offer, found.high))

    def _point(self, offer: Offer, machines: int, change: Change = AS_ASKED) -> tuple[Figures, ...]:
        runs = [Run(offer, machines, seed, change) for seed in range(self._question.seeds)]
        doing = f"{machines} machines, {change.label}"
        return tuple(self._runs.play(runs, doing, self._last))

    def _changed(self, best: Row, change: Change) -> tuple[Figures, ...]:
        assert best.machines is not None
        fits = fits_in(self._question.models, round(best.offer.kind.memory * change.memory))
        return self._point(best.offer, best.machines, change) if fits else ()

    def _curves(self, best: Row) -> tuple[tuple[Point, ...], tuple[Point, ...]]:
        assert best.machines is not None
        counts = sorted({max(1, round(share * best.machines)) for share in CURVE})
        ways = [replace(best.offer, way=way) for way in self._question.ways]
        every = [(offer, n) for offer in [*ways, self._with_all(best.offer)] for n in counts]
        found = self._runs.play([Run(offer, n, 0) for offer, n in every], "more and fewer machines", 0)
        points = [Point(offer, n, (figures,)) for (offer, n), figures in zip(every, found, strict=True)]
        return tuple(points[: -len(counts)]), tuple(points[-len(counts) :])
