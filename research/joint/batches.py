"""Measures what exits gain by the largest batch size, at equal load: the same arrivals on all sides.

The gain of a policy is its latency without exits over that with exits, in the same round. How it changes with the batch
size is taken by rounds too: the median over rounds, because a pause of the machine spoils only one of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from latebind.bench.client import past
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.statistics import Interval, median_interval
from latebind.cli.console import Row, Rows
from latebind.domain.config import PolicyConfig
from latebind.domain.errors import ConfigError
from research.live import Contest
from research.requests import PATIENCE
from research.sides import SERIAL, Figures, Side, graph

SIZES = (1, 2, 4, 8, 16)
LOAD = 0.7  # of what the base model answers one after another: who forms larger batches has more to spare
GATI, COMPACTED, OURS = "GATI batched", "compacted", "late"
GRAPH = "without exits"
WITHOUT = {GATI: GRAPH, COMPACTED: GRAPH, OURS: "late without exits"}  # the same policy


@dataclass(frozen=True, slots=True)
class Plan:
    """Which exits, with which largest batches, at which load; `rounds` of blocks of `seconds` for each side."""

    kinds: tuple[str, ...] = tuple(WITHOUT)
    sizes: tuple[int, ...] = SIZES
    load: float = LOAD
    rounds: int = 6
    seconds: float = 1.5

    @classmethod
    def of(cls, kinds: Sequence[str], sizes: Sequence[int], load: float, rounds: int, seconds: float) -> "Plan":
        """Return a plan of some kinds, all where none is named; raises `ConfigError` for one that there is not."""
        unknown = [kind for kind in kinds if kind not in WITHOUT]
        if unknown:
            raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(map(repr, WITHOUT))}")
        return cls(tuple(kinds) or tuple(WITHOUT), tuple(sizes), load, rounds, seconds)


def sides(kinds: Sequence[str] = tuple(WITHOUT), sizes: Sequence[int] = SIZES) -> dict[str, Side]:
    """Return all sides of these; with batches of one there is neither waiting nor compaction."""
    found = [Side(SERIAL, graph(1))]
    for size in sizes:
        whole, late = graph(size), PolicyConfig("late", size, shed=False)
        policies = {GATI: graph(size, leave=False), COMPACTED: whole, OURS: late}
        for kind in kinds:
            found.append(Side(named(WITHOUT[kind], size), late if kind == OURS else whole))
            found.append(Side(named(kind, size), policies[kind], exits=True))
    return {side.label: side for side in found}


def named(kind: str, size: int) -> str:
    """Return the name of a side."""
    return f"{kind}, {size}"


@dataclass(slots=True)
class BatchesReport:
    """Mean seconds of each block, and the time a request takes with always enough to do, by side.

    Gains are held against that of the first of the sizes.
    """

    plan: Plan
    seed: int
    means: dict[str, list[float]] = field(default_factory=dict)
    times_over: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> Rows:
        """Return by size and kind of exits how many times less a request takes with them, and how many more end."""
        return [self._row(kind, size) for kind in self.plan.kinds for size in self.plan.sizes]

    def _row(self, kind: str, size: int) -> Row:
        least = self.plan.sizes[0]
        return {
            "exits": kind,
            "largest batch": size,
            "without ms": f"{np.median(self.means[named(WITHOUT[kind], size)]) * 1e3:.2f}",
            "with ms": f"{np.median(self.means[named(kind, size)]) * 1e3:.2f}",
            "times less": str(self._median(self.gains(self.means, kind, size))),
            f"of batch {least}": str(self.kept(self.means, kind, size)),
            "times more, saturated": str(self._median(self.gains(self.times_over, kind, size))),
            f"of batch {least}, saturated": str(self.kept(self.times_over, kind, size)),
        }

    def gains(self, figures: Mapping[str, list[float]], kind: str, size: int) -> Figures:
        """Return for each round the figure without exits over that with exits."""
        above, below = (np.array(figures[named(one, size)]) for one in (WITHOUT[kind], kind))
        ratios: Figures = above / below
        return ratios

    def kept(self, figures: Mapping[str, list[float]], kind: str, size: int) -> Interval:
        """Return the gain at this size as a share of that at the first size."""
        return self._median(self.gains(figures, kind, size) / self.gains(figures, kind, self.plan.sizes[0]))

    def _median(self, figures: Figures) -> Interval:
        return median_interval(figures.tolist(), seed=self.seed)


async def measure(report: BatchesReport, contest: Contest, random: Random, tell: Progress) -> None:
    """Add what all rounds show to the report; saturation, of which chance has less of a part, takes a third of them."""
    plan = report.plan
    names = [name for name in sides(plan.kinds, plan.sizes) if name != SERIAL]
    found = await contest.saturated(
        names, plan.seconds, max(1, plan.rounds // 3), random, lambda text, share: tell(text, 0.25 * share)
    )
    for name, times in found.items():
        report.times_over.setdefault(name, []).extend(times)
    alone = contest.alone
    for number in in_rounds(plan.rounds):
        tell(f"{plan.load:.0%} of serial capacity", 0.25 + 0.75 * number / plan.rounds)
        times = past(plan.seconds, plan.load / alone, random)
        for name, played in (await contest.block(names, times, random, alone=alone, allowed=PATIENCE)).items():
            report.means.setdefault(name, []).append(float(played.seconds.mean()))
