"""Batching policies on live engines, one for each policy, with the same model, backend and core, asked in turn.

Each round has a block for every policy and load, with the same rows and arrivals for all. Loads are multiples of what
the engine answers one request after another. Seconds run from when the engine hears of a request to its answer, at the
mean pace of the run (`research/live.py`). Exits are off. Simulated beside live: `python -m research validate`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np

from latebind.batching.costs import Estimate
from latebind.bench.client import during
from latebind.bench.rounds import Progress, in_rounds
from latebind.bench.server import pinned
from latebind.bench.statistics import ratio_of_means
from latebind.bench.subject import Setting, Subject
from latebind.cli.console import Rows
from latebind.domain.config import PolicyConfig, ServedModel
from latebind.domain.costs import TYPICAL_STEPS
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from research.hardware.lower_bound import least_seconds, shares_of
from research.live import Played, Seconds, Session, joined, session
from research.policies import BATCHING
from research.sides import SERIAL, Figures, Side, chosen, chosen_elsewhere, graph

LOADS = (0.5, 1.0, 1.5)
KNOWN = 400  # rows whose right answers are asked for first, one after another
LATE = 10.0  # times what a request takes one after another: after that an answer is late
OURS = "lazy+"
TUNED = "the best baseline, chosen by the other rounds"
OTHERS = ("GraphB(0, 64), leaving", "continuous", "lazy")  # no baselines of the paper's kind: shown, not compared with
_SIDES = (
    Side(SERIAL, graph(1)),
    Side("GraphB(0, 4)", graph(4)),
    Side("GraphB(0, 8)", graph(8)),
    Side("GraphB(0, 16)", graph(16)),
    Side("GraphB(5, 16)", graph(16, 0.005)),
    Side(OURS, PolicyConfig("lazy+", shed=False)),
)
# For sequence models; those that GraphB is made of wait for the longest answer of their batch unless it says otherwise.
_OF_SEQUENCES = (
    Side(SERIAL, graph(1)),
    *(Side(f"GraphB(0, {size})", graph(size, leave=False)) for size in (16, 32, 64)),
    Side("GraphB(5, 32)", graph(32, 0.005, leave=False)),
    Side("GraphB(0, 64), leaving", graph(64)),
    *(Side(name, PolicyConfig(BATCHING[name], shed=False)) for name in ("continuous", "lazy", OURS)),
)
SIDES, SEQUENCE_SIDES = ({side.label: side for side in some} for some in (_SIDES, _OF_SEQUENCES))


@dataclass(frozen=True, slots=True)
class Plan:
    """Loads as multiples of serial capacity, and in each of so many `rounds` a block of `seconds` for each policy.

    Where `sides` are named, only they are asked, besides serial and `lazy+`.
    """

    loads: tuple[float, ...] = LOADS
    rounds: int = 10
    seconds: float = 2.0
    sides: tuple[str, ...] = ()


@dataclass(slots=True)
class LiveReport:
    """Blocks by load (a multiple of serial capacity) and policy, and seconds a request when there is always one more.

    `capacity` is what is answered serially, in requests a second; `allowed` the seconds after which an answer is late;
    `others` how many answers differ from the first to the same row. `floors` has by load, for each request, the seconds
    that it takes alone and the least of `hardware.lower_bound`, which no policy could beat.
    """

    seed: int
    capacity: float = 0.0
    allowed: float = 0.0
    others: int = 0
    saturated: dict[str, list[float]] = field(default_factory=dict)
    blocks: dict[float, dict[str, list[Played]]] = field(default_factory=dict)
    floors: dict[float, list[tuple[Seconds, Seconds]]] = field(default_factory=dict)

    def rows(self) -> Rows:
        """Return the latencies as rows of a table, and at each load `lazy+` against the baselines as tuned."""
        rows: Rows = []
        for load, sides in self.blocks.items():
            means = {side: _means(blocks) for side, blocks in sides.items()}
            best = [sides[side][number] for number, side in enumerate(_tuned(means))]
            for side, blocks in {**sides, TUNED: best}.items():
                every = joined(blocks)
                row = {"load": f"{load:.0%}", "policy": side, **every.latency()}
                over = "" if side == OURS else str(ratio_of_means(_means(blocks), means[OURS], seed=self.seed))
                rows.append({**row, "late": f"{(every.seconds > self.allowed).mean():.2%}", f"over {OURS}": over})
        return rows

    def verdict_rows(self) -> Rows:
        """Return for each load who is ahead, and the share of the baseline that is left at least."""
        rows: Rows = []
        for load, sides in self.blocks.items():
            means = {side: _means(blocks) for side, blocks in sides.items()}
            tuned = float(np.mean([means[side][number] for number, side in enumerate(_tuned(means))]))
            alone, least = (np.concatenate(some).mean() for some in zip(*self.floors[load], strict=True))
            rows.append(
                {
                    "load": f"{load:.0%}",
                    "quickest": min(means, key=lambda side: float(means[side].mean())),
                    f"{OURS} / tuned": f"{means[OURS].mean() / tuned:.2f}",
                    "alone / tuned": f"{alone / tuned:.2f}",
                    "least / tuned": f"{least / tuned:.2f}",
                }
            )
        return rows

    def throughput_rows(self) -> Rows:
        """Return the throughputs as rows of a table, likewise."""
        best = [self.saturated[side][number] for number, side in enumerate(_tuned(self.saturated))]
        ours = self.saturated[OURS]
        return [
            {
                "policy": side,
                "requests a second": f"{1 / np.mean(seconds):.0f}",
                f"{OURS} over it": "" if side == OURS else str(ratio_of_means(seconds, ours, seed=self.seed)),
            }
            for side, seconds in {**self.saturated, TUNED: best}.items()
        ]


def run(subject: Subject, *, setting: Setting, plan: Plan, progress: Progress) -> LiveReport:
    """Ask all sides for rows in turn."""
    path, random, report = subject.path, Random(setting.seed), LiveReport(setting.seed)
    served = ServedModel(*read_spec_and_costs(ModelDirectory.open(path)))
    sides = chosen(SEQUENCE_SIDES if served.spec.kinds else SIDES, plan.sides, always=(SERIAL, OURS))

    async def held() -> None:
        progress(f"starting {len(sides)} engines", 0.0)
        async with session(path, sides, subject.inputs, setting, known=KNOWN) as here:
            await _measure(report, here, plan, random, progress)

    with pinned(setting.frontend_cores):
        asyncio.run(held())
    return report


async def _measure(report: LiveReport, here: Session, plan: Plan, random: Random, tell: Progress) -> None:
    names = list(here.sides)
    found = await here.saturated(names, plan.seconds, plan.rounds, random, lambda text, share: tell(text, 0.3 * share))
    alone = here.alone
    report.saturated = {name: [alone * times for times in some] for name, some in found.items()}
    report.capacity, report.allowed = 1.0 / alone, LATE * alone
    for number in in_rounds(plan.rounds):
        for at, load in enumerate(plan.loads):
            share = (number + at / len(plan.loads)) / plan.rounds
            tell(f"{load:.0%} of serial capacity", 0.3 + 0.7 * share)
            times, first = during(plan.seconds, load / alone, random), here.rows.next
            for name, played in (await here.block(names, times, random, alone=alone)).items():
                report.blocks.setdefault(load, {side: [] for side in names})[name].append(played)
            report.floors.setdefault(load, []).append(_floor(here, times, first))
    report.others = here.rows.others


def _floor(here: Session, times: Sequence[float], first: int) -> tuple[Seconds, Seconds]:
    """Return what requests of a block take alone and at least, by profile at the mean pace."""
    served = here.served
    estimate = Estimate(served.spec, served.costs)
    inputs = TYPICAL_STEPS if served.spec.kinds else 1
    every = [estimate.whole(1, *lengths) for lengths in here.rows.lengths(served.spec)]
    of_block = here.rows.lengths(served.spec, range(first, first + len(times)))
    work = [here.alone * estimate.whole(1, *lengths) / float(np.mean(every)) for lengths in of_block]

    def together(batch: int) -> float:
        return estimate.whole(batch, inputs, estimate.mean_outputs)

    return np.array(work), np.array(least_seconds(times, work, shares_of(together, served.spec.max_batch)))


def _means(blocks: Sequence[Played]) -> Figures:
    return np.array([block.seconds.mean() for block in blocks])


def _tuned(means: Mapping[str, Sequence[float] | Figures]) -> list[str]:
    """Return the best baseline for each round, chosen by the others."""
    return chosen_elsewhere({side: list(some) for side, some in means.items() if side != OURS and side not in OTHERS})
