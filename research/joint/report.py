"""Tables of joint runs: goodput by load and deadline, with intervals over rounds, and our ratio to each side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from typing import NamedTuple

import numpy as np

from latebind.bench.statistics import Interval, mean_interval, ratio_of_means
from latebind.cli.console import Row, Rows
from research.joint.sides import BASELINES, OURS, Contender, Kind, of_kind
from research.live.played import Flags, Played, joined
from research.live.tuning import Figures, most


class Cell(NamedTuple):
    """A load, as a multiple of what the base model does at most, and a deadline, of what it takes alone."""

    load: float
    deadline: float


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

    model: str
    seed: int
    contenders: Mapping[str, Contender]
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
        found = {name: self.fidelity(name) for name, one in self.contenders.items() if one.side.exits}
        return {name: share for name, share in found.items() if not isnan(share)}

    def _row(self, name: str, blocks: Sequence[Block], ours: Figures) -> Row:
        all_ = joined([block.played for block in blocks])
        answered = all_.answered
        some = bool(answered.any())
        theirs = np.array([block.goodput for block in blocks])
        return {
            "side": name,
            "in time a second": str(mean_interval(theirs, seed=self.seed)),
            "in time": f"{np.concatenate([block.in_time for block in blocks]).mean():.1%}",
            "mean ms": f"{all_.seconds[answered].mean() * 1e3:.2f}" if some else "",
            "p99 ms": f"{np.percentile(all_.seconds[answered], 99) * 1e3:.2f}" if some else "",
            "shed": f"{1.0 - answered.mean():.1%}",
            "left early": f"{all_.early[answered].mean():.1%}" if some else "",
            "fidelity": "" if isnan(all_.fidelity) else f"{all_.fidelity:.4f}",
            f"{OURS} over it": self._told(name, ours, theirs),
        }

    def _told(self, name: str, ours: Figures, theirs: Figures) -> str:
        if name == OURS or not theirs.any():
            return ""
        return str(ratio_of_means(ours, theirs, seed=self.seed))
