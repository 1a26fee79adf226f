"""Elastic batching on the live engine, on several cores: against waiting, not waiting, and `late`.

Each side has an engine of its own on the same cores, asked in turn with the same rows at the same times. Baselines run
with one worker that has all cores, and with one worker for each core. All sides refuse and drop requests that cannot be
answered within the target, so the answers in time at a load show the throughput that keeps it. The tables also have how
much work fits on the cores at all: no side can have more in time.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from random import Random

import numpy as np

from latebind.batching.costs import Estimate
from latebind.bench.client import past
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.server import pinned
from latebind.bench.statistics import ratio_of_means
from latebind.bench.subject import Setting, Subject
from latebind.cli.console import Row, Rows
from latebind.domain.config import PolicyConfig, ServedModel
from research.live import Played, Session, joined, session
from research.policies import BATCHING
from research.sides import SERIAL, Figures, Side, chosen, graph, least, most, of_kind

WINDOWS = (0.005, 0.010, 0.020, 0.030)  # seconds; the best of them is TF-Serving's optimal wait (Ebird, section III)
GRANULARITIES = (1, 1, 2, 4, 8, 16)
LOADS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.2)
CAPACITY_ROUNDS = 4
KNOWN = 1_000  # rows whose right answers are asked for first, one after another
KEPT = 0.99  # of the requests in time: the target is one for the 99th percentile


class Kind(StrEnum):
    """The role of a side."""

    NO_WAIT = "no wait"
    OPTIMAL_WAIT = "optimal wait"
    ELASTIC = "elastic"
    LATE = "late"


JUDGED, BASELINES = (Kind.ELASTIC, Kind.LATE), (Kind.NO_WAIT, Kind.OPTIMAL_WAIT)


def contenders(cores: int) -> dict[str, Side]:
    """Return all sides by name, each for an engine on so many cores."""
    crews = {f"1 x {cores}": (1, cores), f"{cores} x 1": (cores, 1)} if cores > 1 else {"1 x 1": (1, 1)}
    found: list[Side] = []
    for label, (workers, threads) in crews.items():
        for window in (0.0, *WINDOWS):
            kind = Kind.OPTIMAL_WAIT if window else Kind.NO_WAIT
            name = f"wait {window * 1e3:g} ms, {label}" if window else f"no wait, {label}"
            found.append(Side(name, graph(window=window, shed=True), (kind,), workers=workers, threads=threads))
    for kind in JUDGED:
        name = f"{kind}, {' '.join(map(str, GRANULARITIES))}"
        found.append(Side(name, PolicyConfig(BATCHING[kind]), (kind,), granularities=GRANULARITIES))
    found.append(Side(f"late, {cores} x 1", PolicyConfig("late"), (Kind.LATE,), workers=cores))
    return {side.label: side for side in found}


@dataclass(frozen=True, slots=True)
class Plan:
    """Loads as multiples of what the best baseline does at most, in `rounds` of blocks of `seconds` for each side.

    What is not answered within `target` times what a request takes alone is late. Where `sides` are named, only they
    are asked.
    """

    loads: tuple[float, ...] = LOADS
    target: float = 10.0
    rounds: int = 6
    seconds: float = 2.0
    sides: tuple[str, ...] = ()


@dataclass(slots=True)
class ElasticReport:
    """Outcomes by load and side, one round after the other; the blocks of a load last `spans` seconds."""

    seed: int
    sides: Mapping[str, Side]
    alone: float = 0.0
    allowed: float = 0.0
    capacity: float = 0.0
    fits: float = 0.0
    saturated: dict[str, list[float]] = field(default_factory=dict)
    spans: dict[float, list[float]] = field(default_factory=dict)
    played: dict[float, dict[str, list[Played]]] = field(default_factory=dict)

    @property
    def limit(self) -> float:
        """The requests a second that the machine can answer: by the profile, or, if more, as any side has shown."""
        times = [float(np.mean(times)) for times in self.saturated.values()]
        return max(self.fits, 1.0 / (self.alone * min(times)))

    def rows(self) -> Rows:
        """Return by load and side what came of the requests; ratios are of means, over the best of each kind."""
        return [self._row(load, name) for load, sides in self.played.items() for name in sides]

    def saturated_rows(self) -> Rows:
        """Return the throughput of each side when saturated, and within the target."""
        return [
            {
                "side": name,
                "at most a second": f"{1.0 / (self.alone * np.mean(times)):.0f}",
                "in time a second": f"{self._most_in_time(name):.0f}",
                "of what fits on the cores": f"{self._most_in_time(name) / self.limit:.3f}",
                f"highest load with {KEPT:.0%} in time": self._highest(name),
                "answers unlike the first": self._unlike(name),
            }
            for name, times in self.saturated.items()
        ]

    def judged_rows(self) -> Rows:
        """Return for each load the judged sides against the best baseline of each kind, chosen by the other rounds."""
        rows: Rows = []
        for load, sides in self.played.items():
            for name in [name for name in sides if self.sides[name].kinds[0] in JUDGED]:
                row: Row = {"load": f"{load:.0%}", "side": name}
                for kind in [kind for kind in BASELINES if of_kind(self.sides, kind)]:
                    waited = least({one: self.means(load, one) for one in of_kind(self.sides, kind)})
                    in_time = most({one: self.in_time(load, one) for one in of_kind(self.sides, kind)})
                    row[f"mean of {kind} over it"] = self._ratio(waited, self.means(load, name))
                    row[f"in time over {kind}"] = self._ratio(self.in_time(load, name), in_time)
                rows.append(row)
        return rows

    def means(self, load: float, name: str) -> Figures:
        """Return the mean seconds of the answers of each round, inf where nobody was answered."""
        rounds = [one.seconds[one.answered] for one in self.played[load][name]]
        return np.array([seconds.mean() if len(seconds) else inf for seconds in rounds])

    def in_time(self, load: float, name: str) -> Figures:
        """Return the answers within the target a second of each round."""
        rounds = zip(self.played[load][name], self.spans[load], strict=True)
        return np.array([(one.seconds <= self.allowed).sum() / span for one, span in rounds])

    def _most_in_time(self, name: str) -> float:
        return max(float(self.in_time(load, name).mean()) for load in self.played)

    def _ratio(self, above: Figures, below: Figures) -> str:
        return str(ratio_of_means(above, below, seed=self.seed))

    def _highest(self, name: str) -> str:
        """Return the highest load at which the target share of requests is answered in time."""
        kept = [
            load for load, sides in self.played.items() if (joined(sides[name]).seconds <= self.allowed).mean() >= KEPT
        ]
        return f"{max(kept):.0%}" if kept else "none"

    def _unlike(self, name: str) -> str:
        every = joined([one for sides in self.played.values() for one in sides[name]])
        answered = int(every.answered.sum())
        return f"{round((1.0 - every.fidelity) * answered) if answered else 0} of {answered}"

    def _row(self, load: float, name: str) -> Row:
        every = joined(self.played[load][name])
        return {
            "load": f"{load:.0%}",
            "side": name,
            **every.latency(),
            "in time": f"{(every.seconds <= self.allowed).mean():.1%}",
            "in time a second": f"{self.in_time(load, name).mean():.1f}",
        }


def run(subject: Subject, *, setting: Setting, cores: tuple[int, ...], plan: Plan, progress: Progress) -> ElasticReport:
    """Ask engines on `cores` for rows. Raises `ConfigError`."""
    taking_part = chosen(contenders(len(cores)), plan.sides)
    sides = {SERIAL: Side(SERIAL, graph(1)), **taking_part}
    report = ElasticReport(setting.seed, taking_part)

    async def held() -> None:
        progress(f"starting {len(sides)} engines", 0.0)
        async with session(subject.path, sides, subject.inputs, setting, known=KNOWN, cores=cores) as here:
            await _measure(report, here, plan, len(cores), Random(setting.seed), progress)

    with pinned(setting.frontend_cores):
        asyncio.run(held())
    return report


def most_answered(served: ServedModel) -> float:
    """Return a core's throughput in the best batches as a multiple of that one by one, by the profile.

    Each operator on one core: to divide one among several costs more work, not less.
    """
    estimate = Estimate(served.spec, served.costs)
    rates = dict(estimate.answered(served.spec.max_batch).rates)
    return max(rates.values()) / rates[1]


async def _measure(
    report: ElasticReport, here: Session, plan: Plan, cores: int, random: Random, progress: Progress
) -> None:
    names = list(report.sides)
    report.saturated = await here.saturated(
        names, plan.seconds, CAPACITY_ROUNDS, random, lambda text, share: progress(text, 0.2 * share)
    )
    report.alone = here.alone
    report.allowed = plan.target * here.alone
    report.fits = cores * most_answered(here.served) / here.alone
    baselines = [name for name in names if report.sides[name].kinds[0] in BASELINES] or names
    report.capacity = 1.0 / (here.alone * min(float(np.mean(report.saturated[name])) for name in baselines))
    for number in in_rounds(plan.rounds):
        for at, load in enumerate(plan.loads):
            progress(f"{load:.0%}", 0.2 + 0.8 * (number + at / len(plan.loads)) / plan.rounds)
            times = past(plan.seconds, load * report.capacity, random)
            played = await here.block(names, times, random, alone=report.alone, allowed=report.allowed)
            report.spans.setdefault(load, []).append(times[-1])
            for name, one in played.items():
                report.played.setdefault(load, {other: [] for other in names})[name].append(one)
