"""Batching policies on live engines, and the same requests simulated with measured costs.

There is one engine for each policy, all with the same model directory, backend and core, asked in turn. Each round has
a block for every policy and load, with the same rows and arrivals for all. Loads are multiples of what the engine
answers one request after another. Seconds of a request run from its sending to its answer, as clients of the engine see
them.

Arrivals keep to the pace that the machine has (`bench.live.pace`), and seconds are given at the mean pace of the whole
run. Before and after each block, a calibration shows what launches and messages take, and the block is simulated with
those figures (`research.validate`). Of the block itself the simulator only knows when requests were sent, and
how long they were. Near saturation the pace within a block decides, and calibrations do not show it. So blocks are also
simulated with what their own launches took.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random

import numpy as np

from latebind.batching.costs import Estimate
from latebind.bench.client import during, rising
from latebind.bench.rounds import Progress, in_parallel, in_rounds
from latebind.bench.server import pinned
from latebind.bench.subject import Setting, Subject
from latebind.domain.config import PolicyConfig
from latebind.domain.costs import TYPICAL_STEPS
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from research.hardware.lower_bound import least_seconds, shares_of
from research.lazybatching.live_report import OURS, Block, Floor, LiveReport, Means
from research.live.played import Seconds
from research.live.requests import Sent, Visit
from research.live.session import Session, session
from research.live.sides import SERIAL, Side, chosen
from research.policies import BATCHING
from research.validate.live import Played
from research.validate.logged import Logged, check_can_replay
from research.validate.simulated import Run, simulated, told_all

LOADS = (0.5, 1.0, 1.5)
KNOWN = 400  # rows whose right answers are asked for first, one after another
RUNS = 3  # of each block on the virtual clock
LATE = 10.0  # times what a request takes one after another: after that an answer is late
SIDES = {
    SERIAL: Side(PolicyConfig("graph", 1, shed=False)),
    "GraphB(0, 4)": Side(PolicyConfig("graph", 4, shed=False)),
    "GraphB(0, 8)": Side(PolicyConfig("graph", 8, shed=False)),
    "GraphB(0, 16)": Side(PolicyConfig("graph", 16, shed=False)),
    "GraphB(5, 16)": Side(PolicyConfig("graph", 16, window=0.005, shed=False)),
    OURS: Side(PolicyConfig("lazy+", shed=False)),
}
# For sequence models; those that GraphB is made of wait for the longest answer of their batch unless it says otherwise.
SEQUENCE_SIDES = {
    SERIAL: Side(PolicyConfig("graph", 1, shed=False)),
    "GraphB(0, 16)": Side(PolicyConfig(BATCHING["waiting"], 16, shed=False)),
    "GraphB(0, 32)": Side(PolicyConfig(BATCHING["waiting"], 32, shed=False)),
    "GraphB(0, 64)": Side(PolicyConfig(BATCHING["waiting"], 64, shed=False)),
    "GraphB(5, 32)": Side(PolicyConfig(BATCHING["waiting"], 32, window=0.005, shed=False)),
    "GraphB(0, 64), leaving": Side(PolicyConfig("graph", 64, shed=False)),
    "continuous": Side(PolicyConfig(BATCHING["continuous"], shed=False)),
    "lazy": Side(PolicyConfig(BATCHING["lazy"], shed=False)),
    OURS: Side(PolicyConfig("lazy+", shed=False)),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Loads as multiples of serial capacity, and in each of so many `rounds` a block of `seconds` for each policy.

    Before and after each block are `calibration` seconds. Where `sides` are named, only they are asked, besides serial,
    which is always needed, and `lazy+`. With `saturation` they also have always enough to do for a while.
    """

    loads: tuple[float, ...] = LOADS
    rounds: int = 10
    seconds: float = 2.0
    sides: tuple[str, ...] = ()
    saturation: bool = True
    calibration: float = 0.5


def run(
    subject: Subject,
    *,
    setting: Setting,
    plan: Plan,
    progress: Progress = lambda text, share: None,
) -> LiveReport:
    """Ask for rows, then simulate. Exits are off."""
    check_can_replay()
    with tempfile.TemporaryDirectory(prefix="latebind-live-") as folder:
        live = _Live(subject, setting, plan, Path(folder), progress)
        with pinned(setting.door_cores):
            report = asyncio.run(live.measure())
        _simulate(report, live, progress)
    return report


@dataclass(slots=True)
class _Live:
    """The live half: what clients saw of each round by load and side, and how many times slower the machine was."""

    subject: Subject
    setting: Setting
    plan: Plan
    folder: Path
    tell: Progress
    visits: dict[float, dict[str, list[tuple[float, Visit]]]] = field(default_factory=dict)
    logs: dict[str, Path] = field(default_factory=dict)

    async def measure(self) -> LiveReport:
        """Ask all sides in turn."""
        random, plan, path = Random(self.setting.seed), self.plan, self.subject.path
        spec, _ = read_spec_and_costs(ModelDirectory.open(path))
        sides = chosen(SEQUENCE_SIDES if spec.kinds else SIDES, plan.sides, always=(SERIAL, OURS))
        self.logs = {name: self.folder / f"{number}.jsonl" for number, name in enumerate(sides)}
        self.tell("starting", 0.0)
        async with session(path, sides, self.subject.inputs, self.setting, known=KNOWN, logs=self.logs) as here:
            report = LiveReport(self.subject.model, self.setting.seed, capacity=0.0, allowed=0.0)
            if plan.saturation:
                report.saturated = await self._saturated(here, sides, random)
            alone = here.alone
            report.capacity, report.allowed = 1.0 / alone, LATE * alone
            for number in in_rounds(plan.rounds):
                for at, load in enumerate(plan.loads):
                    share = (number + at / len(plan.loads)) / plan.rounds
                    self.tell(f"{load:.0%} of serial capacity", 0.3 + 0.5 * share)
                    found = await here.visits(
                        list(sides), _stretches(plan, load * report.capacity, random), random, alone=alone
                    )
                    of_load = self.visits.setdefault(load, {name: [] for name in sides})
                    for name, visit in found.items():
                        of_load[name].append(visit)
            report.other_answers = here.rows.others
        return report

    async def _saturated(self, here: Session, sides: Mapping[str, Side], random: Random) -> Means:
        found = await here.saturated(
            list(sides), self.plan.seconds, self.plan.rounds, random, lambda text, share: self.tell(text, 0.3 * share)
        )
        return {name: [here.alone * times for times in some] for name, some in found.items()}


def _stretches(plan: Plan, rate: float, random: Random) -> list[list[float]]:
    """Return the arrival times of the first calibration, of the block, and of the second calibration."""
    before, after = (rising(plan.calibration, rate, random) for _ in range(2))
    return [before, during(plan.seconds, rate, random), after]


def _simulate(report: LiveReport, live: _Live, progress: Progress) -> None:
    """Simulate all blocks on the virtual clock, for comparison with the live ones."""
    played = [
        Played(
            report.model, name, [visit for sides in live.visits.values() for _, visit in sides[name]], Logged.read(log)
        )
        for name, log in live.logs.items()
    ]
    every = in_parallel(
        partial(_runs, seed=report.seed),
        played,
        name=lambda one: f"simulating {one.policy}",
        progress=lambda text, share: progress(text, 0.8 + 0.2 * share),
    )
    (serial,) = [one.log for one in played if one.policy == SERIAL]
    for load, sides in live.visits.items():
        report.floors[load] = [_floor(serial, slower, visit) for slower, visit in sides[SERIAL]]
    for one, visits in zip(played, every, strict=True):
        found = iter(visits)
        for load, sides in live.visits.items():
            report.blocks.setdefault(load, {})[one.policy] = [
                Block(_told_at(slower, visit.blocks[0]), *[[run / slower for run in runs] for runs in next(found)])
                for slower, visit in sides[one.policy]
            ]


def _runs(played: Played, seed: int) -> list[tuple[list[Seconds], list[Seconds]]]:
    """Return for each visit the seconds of its block in several runs, told what was beside it, and told all."""
    both = simulated(played, seed, times=RUNS), told_all(played, seed, times=RUNS)
    return [(_of_block(some), _of_block(others)) for some, others in zip(*both, strict=True)]


def _of_block(runs: Sequence[Run]) -> list[Seconds]:
    return [run.blocks[0] for run in runs]


def _told_at(slower: float, block: Sequence[Sent]) -> Seconds:
    """Return the seconds of a block, divided by how many times slower than usual the machine was."""
    return np.array([one.seconds / slower for one in block])


def _floor(serial: Logged, slower: float, visit: Visit) -> Floor:
    """Return what requests of a block take alone and at least, by the serial engine's launches around that time."""
    (block,), (served,) = visit.blocks, serial.config.models
    estimate = Estimate(served.spec, served.costs)
    inputs = TYPICAL_STEPS if served.spec.kinds else 1

    def alone(one: Sent) -> float:
        return estimate.whole(1, one.inputs, one.outputs)

    def together(batch: int) -> float:
        return estimate.whole(batch, inputs, estimate.mean_outputs)

    took = sum([launch.seconds for _, launch in serial.seen(visit.sent).launches])
    unit = took / slower / sum(map(alone, visit.sent))
    work = [unit * alone(one) for one in block]
    times = [(one.sent - block[0].sent) / slower for one in block]
    return Floor(np.array(work), np.array(least_seconds(times, work, shares_of(together, served.spec.max_batch))))
