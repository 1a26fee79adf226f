"""Answers in time a second, by load and deadline, with intervals over rounds, and our ratio to each kind of side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from random import Random
from typing import NamedTuple

import numpy as np

from latebind.bench.client import past
from latebind.bench.report import Plot
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.statistics import Interval, mean_interval, ratio_of_means
from latebind.cli.console import Row, Rows
from research import plots
from research.evaluation import Found
from research.joint.bound import most_in_time
from research.joint.sides import BASELINES, OURS, Kind, contenders, knowing
from research.live import Contest, Flags, Played, joined
from research.sides import SERIAL, Figures, Side, chosen, most, of_kind

LOADS = (0.8, 1.0, 1.2)
DEADLINES = (2.0, 3.0, 5.0, 10.0)
CAPACITY_ROUNDS = 4


class Cell(NamedTuple):
    """A load, as a multiple of what the base model does at most, and a deadline, of what it takes alone."""

    load: float
    deadline: float


@dataclass(frozen=True, slots=True)
class Plan:
    """In each of so many `rounds`, at each load and deadline a block of `seconds` for each side.

    Loads are multiples of what the base model does at most, with the best policy without exits; deadlines are
    multiples of what a request takes alone. Where `sides` are named, only they are asked, besides serial and `late`.
    """

    loads: tuple[float, ...] = LOADS
    deadlines: tuple[float, ...] = DEADLINES
    rounds: int = 6
    seconds: float = 1.5
    sides: tuple[str, ...] = ()

    @property
    def cells(self) -> list[Cell]:
        """All loads at all deadlines."""
        return [Cell(load, deadline) for load in self.loads for deadline in self.deadlines]

    def chosen(self) -> dict[str, Side]:
        """Return the sides that take part; raises `ConfigError`."""
        return chosen(contenders(), self.sides, always=(SERIAL, OURS))


@dataclass(frozen=True, slots=True)
class Block:
    """The outcome of one block on one side: requests over `span` seconds, each due `allowed` seconds after arrival."""

    span: float
    allowed: float
    played: Played

    @property
    def in_time(self) -> Flags:
        """Whether each request was answered by its deadline."""
        return self.played.seconds <= self.allowed

    @property
    def goodput(self) -> float:
        """Answers within the deadline a second."""
        return float(self.in_time.sum() / self.span)


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the base model does on this core: `alone` seconds a request serially, `most` requests a second by `side`."""

    side: str
    most: float
    alone: float


@dataclass(slots=True)
class JointReport:
    """Blocks by cell and side, a round after the other; a capacity for each model that was measured (folds)."""

    seed: int
    contenders: Mapping[str, Side]
    capacities: list[Capacity] = field(default_factory=list)
    blocks: dict[Cell, dict[str, list[Block]]] = field(default_factory=dict)
    bounds: dict[Cell, list[float]] = field(default_factory=dict)

    def add(self, cell: Cell, found: Mapping[str, Block], bound: float | None = None) -> None:
        """Take in a round, in which any policy could answer so many a second in time at most (`bound`), if known."""
        sides = self.blocks.setdefault(cell, {name: [] for name in found})
        for name, block in found.items():
            sides[name].append(block)
        if bound is not None:
            self.bounds.setdefault(cell, []).append(bound)

    def found(self) -> Found:
        """Return all tables, and goodput over load as a plot for each deadline."""
        cells = {f"{cell.load:.0%}, due after {cell.deadline:g} x": self.rows(cell) for cell in self.blocks}
        fidelities = self.fidelities()
        tables: dict[str, Rows] = {
            "the base model": self.capacity_rows(),
            **cells,
            "times the answers in time of the best of each kind, chosen by the other rounds": self.kind_rows(),
            "fidelity of all answers": [dict(fidelities)] if fidelities else [],
        }
        rows: Rows = [
            {"deadline": f"due after {cell.deadline:g} x", "load": cell.load, **row}
            for cell in self.blocks
            for row in self.rows(cell)
        ]

        def draw(due: str, some: Rows) -> Plot:
            return plots.curves(f"Answers in time, {due}", some, by="side", x="load", y="in time a second")

        return Found(tables, lambda: plots.each(rows, "deadline", draw), {"capacities": self.capacities})

    def capacity_rows(self) -> Rows:
        """Return the base model's capacity, a row for each that was measured."""
        return [
            {"at most a second": f"{one.most:.1f}", "by": one.side, "alone ms": f"{one.alone * 1e3:.2f}"}
            for one in self.capacities
        ]

    def rows(self, cell: Cell) -> Rows:
        """Return one cell as a table."""
        ours = self.goodputs(cell, OURS)
        return [self._row(name, blocks, ours) for name, blocks in self.blocks[cell].items()]

    def kind_rows(self) -> Rows:
        """Return for each cell the goodput of ours, and of the bound, as a multiple of the best side of each kind.

        The best is chosen for each round by all other rounds.
        """
        rows: Rows = []
        for cell in self.blocks:
            row: Row = {"load": f"{cell.load:.0%}", "deadline": f"{cell.deadline:g} x"}
            for kind in BASELINES:
                row[kind] = str(self.over_best(cell, kind) or "")
            rows.append({**row, **self._bound_row(cell)})
        return rows

    def _bound_row(self, cell: Cell) -> Row:
        """Return what any policy could have, and how many times that is what GATI has with batches of 2 or more."""
        bounds, ours = self.bounds.get(cell), np.concatenate([one.in_time for one in self.blocks[cell][OURS]])
        row: Row = {"late, in time of all": f"{ours.mean():.1%}", "of any policy's": "", "at most": ""}
        if bounds:
            most_ = float(np.mean(bounds))
            over = self.over_best(cell, Kind.SHARED)
            mean = float(self.goodputs(cell, OURS).mean())
            row["of any policy's"] = f"{mean / most_:.3f}"
            row["at most"] = f"{over.value * most_ / mean:.2f} over {Kind.SHARED}" if over and mean else ""
        return row

    def over_best(self, cell: Cell, kind: Kind) -> Interval | None:
        """Return the goodput of ours over that of the best of a kind, None where none of that kind answered in time."""
        some = [name for name in of_kind(self.contenders, kind) if name in self.blocks[cell]]
        if not some:
            return None
        best = most({name: self.goodputs(cell, name) for name in some})
        if not best.any():
            return None
        return ratio_of_means(self.goodputs(cell, OURS), best, seed=self.seed)

    def goodputs(self, cell: Cell, side: str) -> Figures:
        """Return the goodput of each round."""
        return np.array([block.goodput for block in self.blocks[cell][side]])

    def fidelity(self, side: str) -> float:
        """Return the share of all answers of a side, whatever the load, that equal the base model's; NaN unknown."""
        return joined([block.played for sides in self.blocks.values() for block in sides[side]]).fidelity

    def fidelities(self) -> dict[str, float]:
        """Return the same of all sides whose answers may come early, where it is known."""
        found = {name: self.fidelity(name) for name, one in self.contenders.items() if one.exits}
        return {name: share for name, share in found.items() if not isnan(share)}

    def _row(self, name: str, blocks: Sequence[Block], ours: Figures) -> Row:
        every, theirs = joined([block.played for block in blocks]), np.array([block.goodput for block in blocks])
        answered = every.answered
        return {
            "side": name,
            "in time a second": str(mean_interval(theirs, seed=self.seed)),
            "in time": f"{np.concatenate([block.in_time for block in blocks]).mean():.1%}",
            **every.latency(),
            "shed": f"{1.0 - answered.mean():.1%}",
            "left early": f"{every.early[answered].mean():.1%}" if answered.any() else "",
            "fidelity": "" if isnan(every.fidelity) else f"{every.fidelity:.4f}",
            f"{OURS} over it": ""
            if name == OURS or not theirs.any()
            else str(ratio_of_means(ours, theirs, seed=self.seed)),
        }


async def measure(
    report: JointReport, contest: Contest, plan: Plan, random: Random, tell: Progress, work: Sequence[float] = ()
) -> None:
    """Add what all rounds show to the report.

    `work` is what a request takes at least, in units of what the base model takes alone: if it leaves at the first
    exit, and if it goes through.
    """
    whole = of_kind(report.contenders, Kind.WHOLE)
    saturated = await contest.saturated(
        whole, plan.seconds, CAPACITY_ROUNDS, random, lambda text, share: tell(text, 0.1 * share)
    )
    capacity = capacity_of(saturated, contest.alone)
    report.capacities.append(capacity)
    for number in in_rounds(plan.rounds):
        for at, cell in enumerate(plan.cells):
            share = (number + at / len(plan.cells)) / plan.rounds
            tell(f"{cell.load:.0%} of capacity, {cell.deadline:g} times alone", 0.1 + 0.9 * share)
            times = past(plan.seconds, cell.load * capacity.most, random)
            allowed = cell.deadline * capacity.alone
            played = await contest.block(list(report.contenders), times, random, alone=capacity.alone, allowed=allowed)
            found = {name: Block(times[-1], allowed, one) for name, one in played.items()}
            report.add(cell, found, _bound(report, played, times, [share * capacity.alone for share in work], allowed))


def _bound(
    report: JointReport, played: Mapping[str, Played], times: Sequence[float], work: Sequence[float], allowed: float
) -> float | None:
    """Return an upper bound on answers in time a second, if a side shows which requests may leave early."""
    side = knowing(report.contenders)
    if side is None or not work or not played[side].answered.all():
        return None
    first, whole = work
    return most_in_time(times, [first if early else whole for early in played[side].early], allowed) / times[-1]


def capacity_of(times_over: Mapping[str, list[float]], alone: float) -> Capacity:
    """Return the saturated throughput of the best of several sides, from times in units of `alone`."""
    best = min(times_over, key=lambda name: float(np.mean(times_over[name])))
    return Capacity(best, 1.0 / (alone * float(np.mean(times_over[best]))), alone)
