"""Batching policies on the live engine, and the same requests simulated with what stages cost on the same day.

One engine for each policy, all with the same model directory, backend and core, asked in turn: each round has a block
for every policy and load, the same rows and arrivals for all. Loads are multiples of what the engine answers one after
another. Seconds of a request are those from the engine's hearing of it to its answer.

Arrivals keep to the pace that the machine has (`bench.live.pace`), and seconds are given at the mean pace of the whole
run. Likewise the profile that is simulated with.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import numpy as np

from latebind.bench.batching.costs import SLOTS, at_pace, profiled_here
from latebind.bench.client import Array
from latebind.bench.exits import Setting
from latebind.bench.live.asked import PATIENCE, poisson_times
from latebind.bench.live.played import Played, Seconds
from latebind.bench.live.session import session
from latebind.bench.live.sides import SERIAL, Side, chosen
from latebind.bench.live.tuning import tuned
from latebind.bench.server import pinned
from latebind.bench.statistics import ratio_of_means
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival

LOADS = (0.5, 1.0, 1.5)
KNOWN = 400  # rows whose right answers are asked for first, one after another
LATE = 10.0  # times what a request takes one after another: after that an answer is late
OURS = "lazy+"
SIDES = {
    SERIAL: Side(PolicyConfig("serial", shed=False)),
    "GraphB(0, 4)": Side(PolicyConfig("graph", 4, shed=False)),
    "GraphB(0, 8)": Side(PolicyConfig("graph", 8, shed=False)),
    "GraphB(0, 16)": Side(PolicyConfig("graph", 16, shed=False)),
    "GraphB(5, 16)": Side(PolicyConfig("graph", 16, window=0.005, shed=False)),
    OURS: Side(PolicyConfig("lazy+", shed=False)),
}
# For sequence models; those that GraphB is made of wait for the longest answer of their batch unless it says otherwise.
SEQUENCE_SIDES = {
    SERIAL: Side(PolicyConfig("serial", shed=False)),
    "GraphB(0, 16)": Side(PolicyConfig("graph", 16, shed=False, leave=False)),
    "GraphB(0, 32)": Side(PolicyConfig("graph", 32, shed=False, leave=False)),
    "GraphB(0, 64)": Side(PolicyConfig("graph", 64, shed=False, leave=False)),
    "GraphB(5, 32)": Side(PolicyConfig("graph", 32, window=0.005, shed=False, leave=False)),
    "GraphB(0, 64), leaving": Side(PolicyConfig("graph", 64, shed=False)),
    "continuous": Side(PolicyConfig("continuous", shed=False)),
    "lazy": Side(PolicyConfig("lazy", shed=False)),
    OURS: Side(PolicyConfig("lazy+", shed=False)),
}
TUNED = "the best baseline, chosen by the other rounds"
OTHERS = ("GraphB(0, 64), leaving", "continuous", "lazy")  # no baselines of the paper's kind: shown, not compared with


@dataclass(frozen=True, slots=True)
class Plan:
    """Loads as multiples of serial capacity, and in each of so many `rounds` a block of `seconds` for each policy.

    Where `sides` are named, only they are asked, besides serial, which is always needed, and `lazy+`.
    """

    loads: tuple[float, ...] = LOADS
    rounds: int = 10
    seconds: float = 2.0
    sides: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """What one policy made of one block: seconds of each request, live and simulated."""

    live: Seconds
    simulated: Seconds


@dataclass(slots=True)
class LiveReport:
    """Blocks by load (a multiple of serial capacity) and policy, and seconds a request when there is always one more.

    `capacity` is what is answered serially, in requests a second; `allowed` the seconds after which an answer is late;
    `other_answers` how many differ from what the serial side answered to the same row; `launch` the seconds that each
    launch takes beyond its profile.
    """

    model: str
    seed: int
    capacity: float
    allowed: float
    launch: float = 0.0
    other_answers: int = 0
    blocks: dict[float, dict[str, list[Block]]] = field(default_factory=dict)
    saturated: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, object]]:
        """Return the latencies as rows of a table, and at each load `lazy+` against the baselines as tuned."""
        rows: list[dict[str, object]] = []
        for load, sides in self.blocks.items():
            means = {side: [float(block.live.mean()) for block in blocks] for side, blocks in sides.items()}
            best = [sides[side][number] for number, side in enumerate(tuned(_baselines(means)))]
            for side, blocks in {**sides, TUNED: best}.items():
                live = np.concatenate([block.live for block in blocks])
                simulated = np.concatenate([block.simulated for block in blocks])
                rows.append(
                    {
                        "load": f"{load:.0%}",
                        "policy": side,
                        "mean ms": f"{live.mean() * 1e3:.2f}",
                        "p99 ms": f"{np.percentile(live, 99) * 1e3:.2f}",
                        "late": f"{(live > self.allowed).mean():.2%}",
                        "simulated ms": f"{simulated.mean() * 1e3:.2f}",
                        "live / simulated": f"{live.mean() / simulated.mean():.2f}",
                        f"over {OURS}": self._told(side, [float(block.live.mean()) for block in blocks], means[OURS]),
                    }
                )
        return rows

    def throughput_rows(self) -> list[dict[str, object]]:
        """Return the throughputs as rows of a table, likewise."""
        best = [self.saturated[side][number] for number, side in enumerate(tuned(_baselines(self.saturated)))]
        return [
            {
                "policy": side,
                "requests a second": f"{1 / np.mean(seconds):.0f}",
                f"{OURS} over it": self._told(side, seconds, self.saturated[OURS]),
            }
            for side, seconds in {**self.saturated, TUNED: best}.items()
        ]

    def _told(self, side: str, theirs: Sequence[float], ours: Sequence[float]) -> str:
        """Return the seconds of a side over those of `lazy+`, paired by rounds, with an interval."""
        if side == OURS:
            return ""
        return str(ratio_of_means(np.array(theirs), np.array(ours), block=1, seed=self.seed))


def _baselines(sides: Mapping[str, Sequence[float]]) -> dict[str, Sequence[float]]:
    return {side: figures for side, figures in sides.items() if side != OURS and side not in OTHERS}


def run(
    repository: Path,
    model: str,
    inputs: Mapping[str, Array],
    *,
    setting: Setting,
    plan: Plan,
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> LiveReport:
    """Ask for rows of `inputs` (arrays `(N, *shape)` by name). Exits are off."""
    (path,) = find_models(repository, [model])
    with pinned(setting.door_cores):
        return asyncio.run(_measure(path, model, inputs, setting, plan, progress))


async def _measure(
    path: Path,
    model: str,
    inputs: Mapping[str, Array],
    setting: Setting,
    plan: Plan,
    progress: Callable[[str, float], None],
) -> LiveReport:
    random = Random(setting.seed)
    spec, _ = read_spec_and_costs(ModelDirectory.open(path))
    sides = chosen(SEQUENCE_SIDES if spec.kinds else SIDES, plan.sides, always=(SERIAL, OURS))
    progress("starting", 0.0)
    async with session(path, sides, inputs, setting, known=KNOWN) as here:
        report = LiveReport(model, setting.seed, capacity=0.0, allowed=0.0)
        progress("measuring what stages cost", 0.1)
        profiled, beyond = await profiled_here(path, setting, here.pace.take, here.rows.lengths())
        times_over = await here.saturated(
            list(sides), plan.seconds, plan.rounds, random, lambda text, share: progress(text, 0.1 + 0.2 * share)
        )
        alone = here.alone
        report.saturated = {name: [alone * times for times in found] for name, found in times_over.items()}
        report.capacity, report.allowed = 1.0 / alone, LATE * alone
        served, report.launch = at_pace(profiled, alone, beyond, here.rows.lengths())
        for number in range(plan.rounds):
            for at, load in enumerate(plan.loads):
                progress(f"{load:.0%} of serial capacity", 0.3 + 0.7 * (number + at / len(plan.loads)) / plan.rounds)
                times = poisson_times(load * report.capacity, plan.seconds, random)
                first = here.rows.next
                played = await here.block(list(sides), times, random, alone=alone)
                lengths = [here.rows.lengths_of(first + place) for place in range(len(times))]
                for name, side in sides.items():
                    block = Block(_all_answered(played[name]), _simulated(served, side.policy, times, lengths))
                    report.blocks.setdefault(load, {other: [] for other in sides})[name].append(block)
        report.other_answers = here.rows.others
    return report


def _all_answered(played: Played) -> Seconds:
    """Return the seconds of all requests; raises `ConfigError` where more waited than an engine takes."""
    if not played.answered.all():
        raise ConfigError(f"more than {SLOTS} requests waited: take lower loads or shorter blocks")
    return played.seconds


def _simulated(
    served: ServedModel, policy: PolicyConfig, times: Sequence[float], lengths: Sequence[tuple[int, int]]
) -> Seconds:
    simulator = Simulator(SchedulerConfig((served,), 1, policy))
    name, last = served.spec.name, served.spec.stages - 1
    arrivals = [Arrival(at, name, PATIENCE, last, *steps) for at, steps in zip(times, lengths, strict=True)]
    return np.array([record.latency for record in simulator.run(arrivals)])
