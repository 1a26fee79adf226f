"""The plan: the fewest machines of every offer, the cheapest offer, what limits it and how sensitive it is.

All offers are compared on the first draw of the traffic. For the cheapest one the search is repeated with other draws
or, if the cluster is too large to simulate, with other samples of it (`sampling.py`); then for the new cheapest one,
until that has been searched with all of them: no offer looks cheaper because it was tested less.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf
from typing import NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from latebind.planning.question import AS_ASKED, CHANGES, Change, Offer, Question, Run, offers
from latebind.planning.runs import Figures, Runs
from latebind.planning.sampling import Estimate, Sampling, busy_workers, drawn_shares

MOST = 6  # at most this many times the machines that compute or memory need are tried
PROBES = 6  # that a search takes, about
FINE = 0.02  # a bracket is closed when it is no wider than this share of its upper end, or one machine
GROWTH = 1.3  # if some machines are too few, this many times as many are tried next
NEAR = 0.1  # share by which fewer than the first number that is enough are tried next
FEWEST, MANY = 4, 12  # samples; more than the fewest only until the interval is narrow
STEP = 0.05  # share of machines, at least one, by which samples are tried with more and fewer
SURE = 0.98  # of the draws of a bootstrap agree whether a number of machines is enough
BEYOND = 3  # steps beyond the first number that is enough, or too few, in the mean
CURVE = (0.4, 0.55, 0.7, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5)  # shares of the plan's machines, for a plot

Cell: TypeAlias = tuple[Offer, int]  # an offer, and a draw of the traffic
Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Row:
    """An offer, the fewest machines that are enough, and their figures by draw.

    If `machines` is None, `most` are too few, and the figures are those of `most`; if an offer is `dearer` than the
    plan even with one machine more than that, nothing else was found out about it. `estimate` says how certain the
    number is if samples were simulated; the plan alone has `all_in_memory`, the number of machines needed if no request
    waits for its model: what compute needs.
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
        """Whether compute or memory determines the number of machines, within `FINE`; empty if not determined."""
        if self.all_in_memory is None:
            return ""
        enough = self.machines is not None and self.machines <= (1 + 2 * FINE) * self.all_in_memory
        return "compute" if enough else "memory"


Line = tuple[tuple[int, float], ...]  # numbers of machines, and the share in time with each


@dataclass(frozen=True, slots=True)
class Plan:
    """A row for each offer, the cheapest that is enough, and its figures under each change.

    A change has no figures if the largest model no longer fits. The `curve` has a line for each way, and one where no
    request waits for a model. Numbers of machines are those of the whole cluster. `sampling` says what part of it was
    simulated.
    """

    rows: tuple[Row, ...]
    best: Row | None
    changes: tuple[tuple[Change, tuple[Figures, ...]], ...]
    curve: Mapping[str, Line]
    sampling: Sampling


def make_plan(question: Question, runs: Runs, *, curve: bool = False) -> Plan:
    """Find the plan; with a `curve` also play more and fewer machines than it has."""
    planner = _Planner(question, runs)
    curves = (len(question.ways) + 1) * len(CURVE) if curve else 0
    runs.expected = PROBES * (len(offers(question)) + planner.draws) + planner.draws * (len(CHANGES) + 1) + curves
    rows, best = planner.rows()
    if best is None:
        return Plan(tuple(rows), None, (), {}, runs.sampling)
    best, plain = planner.with_all_in_memory(best), best
    rows = [best if row is plain else row for row in rows]
    changes = tuple([(change, planner.figures(best, change)) for change in (AS_ASKED, *CHANGES)])
    return Plan(tuple(rows), best, changes, planner.curve(best) if curve else {}, runs.sampling)


def cheapest(question: Question, runs: Runs) -> Row | None:
    """Find only the cheapest offer and how many machines it takes; None if none is enough."""
    return _Planner(question, runs).rows()[1]


class _Planner:
    """Searches. Numbers of machines in searches and runs are those simulated: of a sample, if there are samples."""

    def __init__(self, question: Question, runs: Runs) -> None:
        self._question, self._runs = question, runs
        self._sampling = runs.sampling
        seen = self._sampling.question(question, 0)
        self._memory = sum(model.served.footprint.size for model in seen.population.models)
        self._alone = busy_workers(seen)
        self._firsts: dict[Offer, int] = {}  # the machines that an offer needs by the first draw
        self.draws = FEWEST if self._sampling.sampled else question.seeds  # by which a row is judged

    def rows(self) -> tuple[list[Row], Row | None]:
        """Return a row for every offer, and the cheapest of them by all draws; None if no offer is enough."""
        some, sure = offers(self._question), dict[Offer, Row]()
        while True:  # what has been simulated before costs nothing
            prices = {(offer, 0): offer.kind.price for offer in some if offer not in sure}
            limit = min([row.price for row in sure.values() if row.machines is not None], default=inf)
            found = self._fewest(dict.fromkeys(prices, 0), prices=prices, limit=limit)
            self._firsts |= {offer: one.machines for (offer, _), one in found.items() if one.machines is not None}
            rows = [sure.get(offer) or self._row(offer, found[offer, 0]) for offer in some]
            enough = [row for row in rows if row.machines is not None]
            best = min(enough, key=lambda row: (row.price, row.offer.kind.memory), default=None)
            if best is None or best.offer in sure:
                return rows, best
            sure[best.offer] = self._by_all_draws(best)

    def with_all_in_memory(self, row: Row) -> Row:
        """Return the row with the machines that it would take if no request waited for its model."""
        first = self._firsts[row.offer]
        needed = self._fewest({(self._roomy(row.offer), 0): first}, most=first)
        (share,) = [(one.machines or first) / first for one in needed.values()]  # both by the first draw
        return replace(row, all_in_memory=round(share * (row.machines or 0)))

    def figures(self, row: Row, change: Change) -> tuple[Figures, ...]:
        """Return the figures of each draw under a change; none if the largest model no longer fits."""
        if not self._question.fits_in(round(row.offer.kind.memory * change.memory)):
            return ()
        machines = self._sampling.part(row.machines or row.most)
        runs = [Run(row.offer, seed, machines, change) for seed in range(self.draws)]
        return tuple(self._runs.play(runs, f"{machines} machines, {change.label}"))

    def curve(self, best: Row) -> dict[str, Line]:
        """Return the share in time with fewer and more machines, for each way and if no request waited for a model."""
        machines, whole = self._sampling.part(best.machines or 0), self._sampling.whole
        counts = sorted({max(1, round(share * machines)) for share in CURVE})
        lines = {way.label: replace(best.offer, way=way) for way in self._question.ways}
        lines["no waiting for models"] = self._roomy(best.offer)
        runs = [Run(offer, 0, count) for offer in lines.values() for count in counts]
        shares = iter([figures.in_time for figures in self._runs.play(runs, "more and fewer machines")])
        return {label: tuple([(whole(count), next(shares)) for count in counts]) for label in lines}

    def _roomy(self, offer: Offer) -> Offer:
        """Return the offer with memory for all models, which load in no time."""
        memory = max(offer.kind.memory, self._memory)
        return replace(offer, kind=structs.replace(offer.kind, memory=memory, loading=0.0))

    def _fewest(
        self,
        cells: Mapping[Cell, int],
        *,
        most: int = 0,
        prices: Mapping[Cell, float] | None = None,
        limit: float = inf,
    ) -> dict[Cell, "Found"]:
        """Search for each offer and draw, beginning with these numbers of machines (0: those that compute needs)."""
        firsts, mosts = {}, {}
        for (offer, draw), first in cells.items():
            kind = offer.kind
            firsts[offer, draw] = some = first or ceil(self._alone / (kind.workers * kind.speed))
            given = max(1, ceil(self._question.most * self._sampling.share)) if self._question.most else 0
            mosts[offer, draw] = most or given or MOST * max(some, ceil(self._memory / kind.memory), 2)
        return fewest(firsts, self._enough, most=mosts, prices=prices or {}, limit=limit)

    def _enough(self, probes: Sequence[tuple[Cell, int]]) -> list[bool]:
        target, counts = self._question.target, [machines for _, machines in probes]
        doing = f"{len(probes)} offers or draws, {min(counts)} to {max(counts)} machines"
        found = self._runs.play([Run(*cell, machines) for cell, machines in probes], doing, target=target)
        return [figures.complete and figures.in_time >= target for figures in found]

    def _row(self, offer: Offer, found: "Found") -> Row:
        """Return the row of an offer by the first draw."""
        whole = self._sampling.whole
        machines = None if found.machines is None else whole(found.machines)
        runs = [] if found.dearer else [Run(offer, 0, found.machines or found.too_few)]
        figures = self._runs.play(runs, f"{machines} machines")
        return Row(offer, whole(found.too_few), machines, tuple(figures), found.dearer)

    def _by_all_draws(self, row: Row) -> Row:
        """Return the row with other draws of the traffic counted too, or other samples until the interval is narrow."""
        first = self._firsts[row.offer]
        if self._sampling.sampled:
            estimate = self._estimate(row.offer, first)
            row = replace(row, machines=estimate.machines, estimate=estimate)
        else:
            found = self._fewest({(row.offer, draw): first for draw in range(1, self.draws)}).values()
            counts = [first, *[one.machines for one in found if one.machines is not None]]
            enough = len(counts) == self.draws
            most = max([row.most, *[one.too_few for one in found]])
            row = replace(row, machines=max(counts) if enough else None, most=most)
        return replace(row, figures=self.figures(row, AS_ASKED))

    def _estimate(self, offer: Offer, machines: int) -> Estimate:
        """Try more and more samples, beginning with `machines` each, until the interval is narrow."""
        count, machines = FEWEST, max(2, machines)
        while True:
            found = self._around(offer, machines, count)
            lates = {tried: [one.late for one in figures] for tried, figures in found.items()}
            requests = [one.requests for one in found[machines]]
            estimate = self._sampling.estimate(lates, requests, self._question.target)
            if estimate.is_narrow or count == MANY:
                return estimate
            count, machines = min(MANY, count + FEWEST), self._sampling.part(estimate.machines)

    def _around(self, offer: Offer, machines: int, count: int) -> dict[int, list[Figures]]:
        """Return the figures of `count` samples by machines: from too few in nearly all draws to enough in nearly all.

        If there is no such number nearby, because a model may be late with any, it stops a few steps beyond.
        """
        found: dict[int, list[Figures]] = {}
        step = max(1, round(STEP * machines))
        for way in (1, -1):
            tried, beyond = machines, 0
            while beyond < BEYOND and 0 < tried < MOST * machines:
                runs = [Run(offer, seed, tried) for seed in range(count)]
                found[tried] = some = self._runs.play(runs, f"{count} samples of {tried} machines")
                shares = drawn_shares([one.late for one in some], [one.requests for one in some])
                expected = (shares <= 1.0 - self._question.target) == (way > 0)
                if expected.mean() > SURE:
                    break
                beyond += bool(expected[0])
                tried += way * step
        return found


class Found(NamedTuple):
    """The end of a search: the fewest `machines`, or None if `too_few` are not enough.

    If `dearer`, the search was left because even one machine more costs more than what another cell needs.
    """

    machines: int | None
    too_few: int
    dearer: bool = False


def fewest(
    firsts: Mapping[Key, int],
    enough: Callable[[Sequence[tuple[Key, int]]], Sequence[bool]],
    *,
    most: Mapping[Key, int],
    prices: Mapping[Key, float],
    limit: float = inf,
) -> dict[Key, Found]:
    """Return what was found for each cell, beginning with the machines in `firsts`.

    With `prices` of one machine, the search of a cell is left once it is certain to cost more than another one that is
    enough, or than `limit`. All cells are tried at once, in rounds: `enough` returns for each pair of a cell and a
    number of machines whether that is enough.
    """
    searches = {cell: _search(first, most[cell]) for cell, first in firsts.items()}
    tries = {cell: next(search) for cell, search in searches.items()}
    found: dict[Key, Found] = {}
    too_few, best = dict.fromkeys(firsts, 0), limit
    while probes := [
        (cell, tried) for cell, tried in tries.items() if prices.get(cell, 0.0) * (too_few[cell] + 1) <= best
    ]:
        for (cell, machines), answer in zip(probes, enough(probes), strict=True):
            if answer:
                best = min(best, prices.get(cell, 0.0) * machines)
            else:
                too_few[cell] = machines
            try:
                tries[cell] = searches[cell].send(answer)
            except StopIteration as ended:
                del tries[cell]
                found[cell] = Found(ended.value, too_few[cell])
    return {cell: found.get(cell) or Found(None, too_few[cell], dearer=True) for cell in firsts}


def _search(first: int, most: int) -> Generator[int, bool, int | None]:
    """Yield numbers of machines to try and take whether each is enough; return the fewest that are, None if `most` not.

    Fewer machines are assumed never to be better.
    """
    low, high = 0, max(1, min(first, most))
    while not (yield high):
        if high >= most:
            return None
        low, high = high, min(most, ceil(GROWTH * high))
    # If the assumed number is enough, one step below may already be too few.
    tried = (low + high) // 2 if low else high - max(1, round(NEAR * high))
    while high - low > max(1, FINE * high):
        if (yield tried):
            high = tried
        else:
            low = tried
        tried = (low + high) // 2
    return high
