"""What exits gain by the largest batch, at equal load: the same arrivals on all sides."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from latebind.bench.live.asked import poisson_times
from latebind.bench.live.contest import Contest, Progress
from latebind.bench.live.sent import PATIENCE
from latebind.bench.live.sides import SERIAL, Side
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.domain.config import PolicyConfig

SIZES = (1, 2, 4, 8, 16)
LOAD = 0.7  # of what the base model answers one after another: who forms larger batches has more to spare
GATI, COMPACTED, OURS = "GATI batched", "compacted", "late"
WITH_EXITS = (GATI, COMPACTED, OURS)


def sides(sizes: Sequence[int] = SIZES) -> dict[str, Side]:
    """Return all sides of these sizes; in batches of one there is nothing to wait for and nothing to compact."""
    found = {SERIAL: Side(PolicyConfig("serial", shed=False))}
    for size in sizes:
        whole, late = PolicyConfig("graph", size, shed=False), PolicyConfig("late", size, shed=False)
        waits = PolicyConfig("graph", size, shed=False, leave=False)
        found |= {named("", size): Side(whole), named(COMPACTED, size): Side(whole, exits=True)}
        found |= {named(GATI, size): Side(waits, exits=True), named(OURS, size): Side(late, exits=True)}
    return found


def named(kind: str, size: int) -> str:
    """Return the name of a side; no kind: without exits."""
    return f"{kind or 'without exits'}, {size}"


@dataclass(slots=True)
class BatchesReport:
    """Mean seconds of each block, and the time a request takes with always enough to do, by side.

    Gains are held against that of the first of the `sizes`.
    """

    load: float
    seed: int
    sizes: Sequence[int] = SIZES
    means: dict[str, list[float]] = field(default_factory=dict)
    times_over: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, object]]:
        """Return by size and kind of exits how many times less a request takes with them, and how many more end."""
        return [self._row(kind, size) for kind in WITH_EXITS for size in self.sizes]

    def _row(self, kind: str, size: int) -> dict[str, object]:
        least = self.sizes[0]
        gain, first = self.gain(self.means, kind, size), self.gain(self.means, kind, least)
        more, more_first = self.gain(self.times_over, kind, size), self.gain(self.times_over, kind, least)
        return {
            "exits": kind,
            "largest batch": size,
            "without ms": f"{np.mean(self.means[named('', size)]) * 1e3:.2f}",
            "with ms": f"{np.mean(self.means[named(kind, size)]) * 1e3:.2f}",
            "times less": str(gain),
            f"of batch {least}": f"{gain.value / first.value:.3f}",
            "times more, saturated": str(more),
            f"of batch {least}, saturated": f"{more.value / more_first.value:.3f}",
        }

    def gain(self, figures: Mapping[str, list[float]], kind: str, size: int) -> Interval:
        """Return figures without exits over those with, paired by rounds."""
        above, below = (np.array(figures[named(one, size)]) for one in ("", kind))
        return ratio_of_means(above, below, block=1, seed=self.seed)


async def measure(
    report: BatchesReport, contest: Contest, rounds: int, seconds: float, random: Random, tell: Progress
) -> None:
    """Add what so many rounds show to the report."""
    names = [name for name in sides(report.sizes) if name != SERIAL]
    found = await contest.saturated(names, seconds, rounds, random, lambda text, share: tell(text, 0.5 * share))
    for name, times in found.items():
        report.times_over.setdefault(name, []).extend(times)
    alone = contest.alone
    for number in range(rounds):
        tell(f"{report.load:.0%} of serial capacity", 0.5 + 0.5 * number / rounds)
        times = poisson_times(report.load / alone, seconds, random)
        for name, played in (await contest.block(names, times, random, alone=alone, allowed=PATIENCE)).items():
            report.means.setdefault(name, []).append(float(played.seconds.mean()))
