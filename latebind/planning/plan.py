"""The plan: the fewest machines of every offer, the cheapest offer, what limits it and how sensitive it is.

All offers are compared on the same requests. For the cheapest one the search is repeated with other draws of the
traffic, or, where the cluster is too large to simulate, with other samples of it (`sampling.py`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import Generic, TypeVar

from msgspec import structs

from latebind.planning.question import AS_ASKED, CHANGES, Change, Offer, Question, Run, fits_in, offers
from latebind.planning.runs import Figures, Runs
from latebind.planning.sampling import Estimate, Sampling, busy_workers, drawn_shares, least_machines

MOST = 6  # at most this many times the machines that compute or memory need are tried
PROBES = 6  # that a search takes, about
FINE = 0.02  # a bracket is closed when it is no wider than this share of its upper end, or one machine
GROWTH = 1.3  # times as many machines as are too few are tried next
NEAR = 0.1  # so much fewer than the first number that is enough are tried next
FEWEST, MANY = 4, 12  # samples; more than the fewest only until the interval is narrow
STEP = 0.05  # samples are asked with so many more and fewer machines, or one
SURE = 0.98  # of the draws of a bootstrap agree whether a number of machines is enough
BEYOND = 3  # steps beyond the first number that is enough, or too few, in the mean
CURVE = (0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)  # shares of the plan's machines, for a plot

Cell = TypeVar("Cell")


def late(figures: Figures) -> float:
    """Return how many requests were not answered in time."""
    return figures.requests * (1.0 - figures.in_time)


@dataclass(frozen=True, slots=True)
class Row:
    """An offer, the fewest machines that are enough, and their figures by seed.

    Where even `most` machines are not enough, `machines` is None and the figures are those of `most`. Where an offer is
    `dearer` than the plan even with one machine more than `most`, which are too few, nothing else was found out about
    it. The others belong to the plan alone: `estimate` says how sure the number is if samples were simulated, and
    `all_in_memory` is the number of machines needed if no request waits for its model: what compute needs.
    """

    offer: Offer
    most: int
    machines: int | None
    figures: tuple[Figures, ...] = ()
    dearer: bool = False
    estimate: Estimate | None = None
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


Line = tuple[tuple[int, float], ...]  # numbers of machines, and the share in time with each


@dataclass(frozen=True, slots=True)
class Plan:
    """A row for each offer, the cheapest that is enough, and its figures under each change.

    A change has no figures where the largest model does not fit any more. The `curve` has a line for each way, and one
    where no request waits for a model. Numbers of machines are those of the whole cluster. `sampling` says what was
    simulated of it.
    """

    rows: tuple[Row, ...]
    best: Row | None
    changes: tuple[tuple[Change, tuple[Figures, ...]], ...]
    curve: Mapping[str, Line]
    sampling: Sampling


def make_plan(question: Question, runs: Runs, *, curve: bool = False) -> Plan:
    """Find the plan; with a `curve` also play more and fewer machines than it has."""
    return _Planner(question, runs, curve).plan()


def cheapest(question: Question, runs: Runs) -> Row | None:
    """Find the cheapest offer and how many machines it takes, and nothing else; None where none is enough."""
    planner = _Planner(question, runs, curve=False)
    rows, needs = planner.search()
    return planner.best(rows, needs)


class _Planner:
    """Numbers of machines in searches and runs are those of what is simulated: of a sample, if there are samples."""

    def __init__(self, question: Question, runs: Runs, curve: bool) -> None:
        self._question, self._runs, self._curve = question, runs, curve
        self._sampling = runs.sampling
        self._seen = self._sampling.question(question, 0)
        self._memory = sum(model.served.footprint.size for model in self._seen.models)
        self._seeds = FEWEST if self._sampling.sampled else question.seeds  # in how many a row is looked at
        searches = len(offers(question)) + (FEWEST if self._sampling.sampled else question.seeds)
        curves = (len(question.ways) + 1) * len(CURVE) if curve else 0
        runs.expected += PROBES * searches + self._seeds * (len(CHANGES) + 1) + curves
        self._alone = busy_workers(self._seen)

    def plan(self) -> Plan:
        rows, needs = self.search()
        best = self.best(rows, needs)
        if best is None:
            return Plan(tuple(rows), None, (), {}, self._sampling)
        without, high = (self._with_all(best.offer), 0), needs[best.offer]
        needed = self._fewest({without: high}, most=high)[without].high
        best = replace(best, all_in_memory=None if needed is None else self._sampling.whole(needed))
        rows = [best if row.offer == best.offer else row for row in rows]
        changes = tuple([(change, self._changed(best, change)) for change in (AS_ASKED, *CHANGES)])
        return Plan(tuple(rows), best, changes, self._lines(best) if self._curve else {}, self._sampling)

    def search(self) -> tuple[list[Row], dict[Offer, int]]:
        """Return a row for every offer by the first draw, and how many machines that take part those need."""
        some = offers(self._question)
        found = self._fewest({(offer, 0): 0 for offer in some})
        needs = {offer: one.high for (offer, _), one in found.items() if one.high is not None}
        return [self._row(offer, found[offer, 0]) for offer in some], needs

    def best(self, rows: Sequence[Row], needs: Mapping[Offer, int]) -> Row | None:
        """Return the cheapest row, with further draws counted; None where no offer is enough."""
        enough = [row for row in rows if row.machines is not None]
        if not enough:
            return None
        row = min(enough, key=lambda row: (row.price, row.offer.kind.memory))
        return self._sure(row, needs[row.offer])

    def _fewest(
        self, cells: Mapping[tuple[Offer, int], int], most: int = 0
    ) -> dict[tuple[Offer, int], "Bracket[tuple[Offer, int]]"]:
        """Search for each offer and seed, beginning with so many machines (0: those that compute needs)."""
        speeds = {cell: cell[0].kind.workers * cell[0].kind.speed for cell in cells}
        firsts = {cell: first or ceil(self._alone / speeds[cell]) for cell, first in cells.items()}
        mosts = {cell: most or self._limit(cell[0], firsts[cell]) for cell in cells}
        leasts = {cell: min(mosts[cell], least_machines(self._seen, cell[0])) for cell in cells if not cell[1]}
        prices = {cell: cell[0].kind.price for cell in cells}
        return fewest(firsts, self._enough, most=mosts, least=leasts, prices=prices if not most else None)

    def _limit(self, offer: Offer, first: int) -> int:
        """Return the most machines to try: many times what compute or memory alone need."""
        if self._question.most:
            return max(1, ceil(self._question.most * self._sampling.share))
        return MOST * max(first, ceil(self._memory / offer.kind.memory), 2)

    def _with_all(self, offer: Offer) -> Offer:
        """Return the offer with memory for all models, which load in no time."""
        return replace(
            offer, kind=structs.replace(offer.kind, memory=max(offer.kind.memory, self._memory), loading=0.0)
        )

    def _enough(self, probes: Sequence[tuple[tuple[Offer, int], int]]) -> list[bool]:
        target = self._question.target
        doing = f"{len(probes)} offers or draws, {min(n for _, n in probes)} to {max(n for _, n in probes)} machines"
        asked = [Run(offer, machines, seed) for (offer, seed), machines in probes]
        found = self._runs.play(asked, doing, target=target)
        return [figures.complete and figures.in_time >= target for figures in found]

    def _row(self, offer: Offer, found: "Bracket[tuple[Offer, int]]") -> Row:
        if not found.is_closed:
            return Row(offer, self._sampling.whole(found.low), None, dearer=True)
        machines, most = found.high or found.most, self._sampling.whole(found.most)
        figures = self._runs.play([Run(offer, machines, 0)], f"{machines} machines")
        return Row(offer, most, None if found.high is None else self._sampling.whole(found.high), tuple(figures))

    def _sure(self, row: Row, first: int) -> Row:
        """Return the row with other draws of the traffic counted too, or other samples until the interval is narrow."""
        if self._sampling.sampled:
            estimate = self._estimate(row.offer, first)
            row = replace(row, machines=estimate.machines, estimate=estimate)
        else:
            found = self._fewest({(row.offer, seed): first for seed in range(1, self._question.seeds)})
            row = replace(row, machines=max(first, *(one.high or one.most for one in found.values()), 0))
        return replace(row, figures=self._point(row, AS_ASKED))

    def _estimate(self, offer: Offer, machines: int) -> Estimate:
        """Ask more and more samples, beginning with so many machines each, until the interval is narrow."""
        count, target, machines = FEWEST, self._question.target, max(2, machines)
        while True:
            found = self._around(offer, machines, count)
            lates = {tried: [late(one) for one in figures] for tried, figures in found.items()}
            estimate = self._sampling.estimate(lates, [one.requests for one in found[machines]], target)
            if estimate.is_narrow or count == MANY:
                return estimate
            count, machines = min(MANY, count + FEWEST), self._sampling.part(estimate.machines)

    def _around(self, offer: Offer, machines: int, count: int) -> dict[int, list[Figures]]:
        """Return the figures of so many samples by machines: from too few in nearly every draw to enough in nearly all.

        Where there is no such number near, for a model may come too late with any, it stops a few steps beyond.
        """
        found: dict[int, list[Figures]] = {}
        step = max(1, round(STEP * machines))
        for way in (1, -1):
            tried, beyond = machines, 0
            while beyond < BEYOND and 0 < tried < MOST * machines:
                runs = [Run(offer, tried, seed) for seed in range(count)]
                found[tried] = some = self._runs.play(runs, f"{count} samples of {tried} machines")
                shares = drawn_shares([late(one) for one in some], [one.requests for one in some])
                expected = (shares <= 1.0 - self._question.target) == (way > 0)
                if expected.mean() > SURE:
                    break
                beyond += bool(expected[0])
                tried += way * step
        return found

    def _point(self, row: Row, change: Change) -> tuple[Figures, ...]:
        machines = self._sampling.part(row.machines or 0)
        runs = [Run(row.offer, machines, seed, change) for seed in range(self._seeds)]
        return tuple(self._runs.play(runs, f"{machines} machines, {change.label}"))

    def _changed(self, best: Row, change: Change) -> tuple[Figures, ...]:
        fits = fits_in(self._question.models, round(best.offer.kind.memory * change.memory))
        return self._point(best, change) if fits else ()

    def _lines(self, best: Row) -> dict[str, Line]:
        machines, whole = self._sampling.part(best.machines or 0), self._sampling.whole
        counts = sorted({max(1, round(share * machines)) for share in CURVE})
        lines = {way.label: replace(best.offer, way=way) for way in self._question.ways}
        lines["no waiting for models"] = self._with_all(best.offer)
        runs = [Run(offer, count, 0) for offer in lines.values() for count in counts]
        shares = iter([figures.in_time for figures in self._runs.play(runs, "more and fewer machines")])
        return {label: tuple([(whole(count), next(shares)) for count in counts]) for label in lines}


@dataclass(slots=True)
class Bracket(Generic[Cell]):
    """What is known of one cell: `low` machines are too few, `high` are enough (None: not found yet).

    Fewer machines are assumed never to be better. `price` is that of one machine.
    """

    cell: Cell
    first: int
    most: int
    price: float = 0.0
    low: int = 0
    high: int | None = None
    probed: dict[int, bool] = field(default_factory=dict)

    def next(self) -> int | None:
        """Return the number of machines to try next, or None where the search has ended."""
        if self.high is None:
            return None if self.low >= self.most else min(self.most, max(self.first, ceil(GROWTH * self.low)))
        if self.high - self.low <= max(1, FINE * self.high):
            return None
        if len(self.probed) == 1:  # what was believed is enough: one step below may already be too few
            return max(self.low + 1, self.high - max(1, round(NEAR * self.high)))
        return (self.low + self.high) // 2

    @property
    def is_closed(self) -> bool:
        """Whether nothing is left to try."""
        return self.next() is None

    def tell(self, machines: int, enough: bool) -> None:
        """Note the result of a probe."""
        self.probed[machines] = enough
        if enough:
            self.high = machines
        else:
            self.low = machines


def fewest(
    firsts: Mapping[Cell, int],
    enough: Callable[[Sequence[tuple[Cell, int]]], Sequence[bool]],
    *,
    most: Mapping[Cell, int],
    least: Mapping[Cell, int] | None = None,
    prices: Mapping[Cell, float] | None = None,
) -> dict[Cell, Bracket[Cell]]:
    """Return what was found of each cell: `high` are the fewest machines, None where `most` are too few.

    By bisection in rounds, in which all cells are tried at once. `firsts` are tried first; fewer than `least` are taken
    to be too few. With `prices` of one machine, a cell is left as it is where even one machine more than are known to
    be too few costs more than another cell that is enough.

    `enough` returns for each pair of a cell and a number of machines whether that is enough.
    """
    brackets = {cell: Bracket(cell, max(1, min(first, most[cell])), most[cell]) for cell, first in firsts.items()}
    for cell, bracket in brackets.items():
        bracket.low = (least or {}).get(cell, 1) - 1
        bracket.first = max(bracket.first, bracket.low + 1)
        bracket.price = prices[cell] if prices else 0.0
    while True:
        best = min((one.price * one.high for one in brackets.values() if one.high is not None), default=inf)
        open_ = [one for one in brackets.values() if one.price * (one.low + 1) <= best]
        probes = [(one, machines) for one in open_ if (machines := one.next()) is not None]
        if not probes:
            return brackets
        answers = enough([(bracket.cell, machines) for bracket, machines in probes])
        for (bracket, machines), answer in zip(probes, answers, strict=True):
            bracket.tell(machines, answer)
