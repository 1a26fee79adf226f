"""Batching policies on the live engine, and the same requests simulated with what stages cost on the same day.

One engine for each policy, all with the same model directory, backend and core, asked in turn: each round has a block
for every policy and load, the same rows and arrivals for all. Loads are multiples of what the engine answers one after
another. Seconds of a request are those from the engine's hearing of it to its answer.

A machine that others share changes its speed within seconds, by a third and more. So before each block the serial
engine is asked for a while, one request after another. How long these take sets the pace: arrivals keep to it, and
seconds are given at the mean pace of the whole run. Likewise the profile that is simulated with.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.batching.costs import SLOTS, alone, at_pace, profiled_here
from latebind.bench.client import Array
from latebind.bench.exits import Setting
from latebind.bench.server import pinned
from latebind.bench.statistics import ratio_of_means
from latebind.domain.config import EngineConfig, PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.sequence.padding import steps
from latebind.server.gateway import Answer
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival

LOADS = (0.5, 1.0, 1.5)
PATIENCE = 120.0  # seconds that any call may take
WAITING = 3  # batches' worth of rows under way while throughput is measured
WARM_UP = 40
PACED = 0.4  # seconds for which the pace is taken
KNOWN = 400  # rows whose right answers are asked for first, one after another
LATE = 10.0  # times what a request takes one after another: after that an answer is late
OURS, SERIAL = "lazy+", "serial"
SIDES = {
    SERIAL: PolicyConfig("serial", shed=False),
    "GraphB(0, 4)": PolicyConfig("graph", 4, shed=False),
    "GraphB(0, 8)": PolicyConfig("graph", 8, shed=False),
    "GraphB(0, 16)": PolicyConfig("graph", 16, shed=False),
    "GraphB(5, 16)": PolicyConfig("graph", 16, window=0.005, shed=False),
    OURS: PolicyConfig("lazy+", shed=False),
}
# For sequence models; those that GraphB is made of wait for the longest answer of their batch unless it says otherwise.
SEQUENCE_SIDES = {
    SERIAL: PolicyConfig("serial", shed=False),
    "GraphB(0, 16)": PolicyConfig("graph", 16, shed=False, leave=False),
    "GraphB(0, 32)": PolicyConfig("graph", 32, shed=False, leave=False),
    "GraphB(0, 64)": PolicyConfig("graph", 64, shed=False, leave=False),
    "GraphB(5, 32)": PolicyConfig("graph", 32, window=0.005, shed=False, leave=False),
    "GraphB(0, 64), leaving": PolicyConfig("graph", 64, shed=False),
    "continuous": PolicyConfig("continuous", shed=False),
    "lazy": PolicyConfig("lazy", shed=False),
    OURS: PolicyConfig("lazy+", shed=False),
}
TUNED = "the best baseline, chosen by the other rounds"
OTHERS = ("GraphB(0, 64), leaving", "continuous", "lazy")  # no baselines of the paper's kind: shown, not compared with

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Plan:
    """Loads as multiples of serial capacity, and in each of so many `rounds` a block of `seconds` for each policy.

    Where `sides` are named, only they are asked, besides serial, which is always needed, and `lazy+`.
    """

    loads: tuple[float, ...] = LOADS
    rounds: int = 10
    seconds: float = 2.0
    sides: tuple[str, ...] = ()

    def chosen(self, every: Mapping[str, PolicyConfig]) -> dict[str, PolicyConfig]:
        """Return the policies that take part; raises `ConfigError` for one that there is not."""
        unknown = [side for side in self.sides if side not in every]
        if unknown:
            raise ConfigError(f"there is no side {unknown[0]!r}: take some of {', '.join(map(repr, every))}")
        wanted = {SERIAL, OURS, *(self.sides or every)}
        return {side: policy for side, policy in every.items() if side in wanted}


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


def tuned(sides: Mapping[str, Sequence[float]]) -> list[str]:
    """Return for each round the side with the least mean in all others, of a figure for each side and round.

    A side chosen by the rounds that it is then judged by would look better than it is, the more so the more there are.
    """
    figures = np.array(list(sides.values()))
    others = figures.sum(axis=1, keepdims=True) - figures if figures.shape[1] > 1 else figures
    names = list(sides)
    return [names[best] for best in others.argmin(axis=0)]


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
    sides = plan.chosen(SEQUENCE_SIDES if spec.kinds else SIDES)
    async with AsyncExitStack() as stack:
        rows = _Rows(spec, inputs)
        asked: dict[str, _Asked] = {}
        for side, policy in sides.items():
            asked[side] = _Asked(await _started(stack, path, policy, setting), rows)
        progress("learning the right answers", 0.05)
        await asked[SERIAL].saturate(min(rows.count, KNOWN), 1)
        for side in sides:
            await asked[side].saturate(WARM_UP * (policy_batch(sides[side], spec) if spec.kinds else 1), WARM_UP)
        report = LiveReport(model, setting.seed, capacity=0.0, allowed=0.0, saturated={side: [] for side in sides})
        size = round(plan.seconds / await asked[SERIAL].saturate(WARM_UP, 1))
        pacing = max(WARM_UP // 4, round(PACED * size / plan.seconds))
        served = ServedModel(*read_spec_and_costs(ModelDirectory.open(path)))
        paced = [rows.lengths_of(row) for row in range(1, pacing + 1)]  # those between the first and the last asked for
        typical = alone(served, rows.lengths()) / alone(served, paced)
        paces: list[float] = []

        async def pace() -> float:
            """Return how long a request takes now, one after another; always asked with the same rows."""
            rows.next, following = 0, rows.next
            paces.append(typical * await asked[SERIAL].saturate(pacing, 1))
            rows.next = following
            return paces[-1]

        progress("measuring what stages cost", 0.1)
        profiled, beyond = await profiled_here(path, setting, pace, rows.lengths())
        times_over: dict[str, list[float]] = {side: [] for side in sides}
        for number in range(plan.rounds):
            for side in random.sample(list(sides), len(sides)):
                progress("saturation", 0.1 + 0.2 * number / plan.rounds)
                most = WAITING * policy_batch(sides[side], spec)
                here = await pace()
                times_over[side].append(await asked[side].saturate(most * ceil(size / most), most) / here)
        seconds_alone = float(np.mean(paces))
        report.saturated = {side: [seconds_alone * times for times in found] for side, found in times_over.items()}
        report.capacity, report.allowed = 1.0 / seconds_alone, LATE * seconds_alone
        served, report.launch = at_pace(profiled, seconds_alone, beyond, rows.lengths())
        for number in range(plan.rounds):
            for at, load in enumerate(plan.loads):
                progress(f"{load:.0%} of serial capacity", 0.3 + 0.7 * (number + at / len(plan.loads)) / plan.rounds)
                times = _times(load * report.capacity, plan.seconds, random)
                first = rows.next
                for side in random.sample(list(sides), len(sides)):
                    slower, rows.next = await pace() / seconds_alone, first
                    live = await asked[side].play([slower * time_ for time_ in times]) / slower
                    lengths = [rows.lengths_of(first + place) for place in range(len(times))]
                    block = Block(live, _simulated(served, sides[side], times, lengths))
                    report.blocks.setdefault(load, {name: [] for name in sides})[side].append(block)
        report.other_answers = rows.others
    return report


def policy_batch(policy: PolicyConfig, spec: ModelSpec) -> int:
    """Return the largest batch that a side may form."""
    return 1 if policy.name == "serial" else policy.max_batch or spec.max_batch


async def _started(stack: AsyncExitStack, path: Path, policy: PolicyConfig, setting: Setting) -> EngineClient:
    engine = EngineConfig(cores=(setting.engine_core,), slots=SLOTS, exits=False, backend=setting.backend)
    client = await EngineClient.start(EngineOrder((str(path),), engine=engine, policy=policy))
    stack.push_async_callback(client.close)
    return client


class _Rows:
    """The rows that are asked for, in turn, and what the first side to be asked has answered to each."""

    def __init__(self, spec: ModelSpec, inputs: Mapping[str, Array]) -> None:
        self.model = spec.name
        self.next = 0
        self.others = 0  # answers that differ from the first to the same row
        self.count = len(next(iter(inputs.values())))
        self._spec = spec
        self._inputs = inputs
        self._answers: dict[int, Array] = {}

    def take(self) -> tuple[int, dict[str, Array]]:
        """Return the next row and its number."""
        row = self.next % self.count
        self.next += 1
        return row, {name: array[row : row + 1] for name, array in self._inputs.items()}

    def check(self, row: int, answer: Answer) -> None:
        """Compare the tokens of a sequence with the first answer to the same row."""
        if self._spec.kinds:
            tokens = answer.outputs[self._spec.outputs[0].name][0]
            self.others += not np.array_equal(self._answers.setdefault(row, tokens), tokens)

    def lengths_of(self, row: int) -> tuple[int, int]:
        """Return the steps of input and answer of a row, 1 where there are none."""
        row %= self.count
        if not self._spec.kinds:
            return 1, 1
        taken = {name: array[row : row + 1] for name, array in self._inputs.items()}
        return steps(self._spec, taken)[0], len(self._answers[row])

    def lengths(self) -> list[tuple[int, int]]:
        """Return the lengths of all rows that have been answered."""
        return [self.lengths_of(row) for row in (sorted(self._answers) or range(1))]


@dataclass(slots=True)
class _Asked:
    """One engine and the rows that it is asked for."""

    engine: EngineClient
    rows: _Rows

    async def saturate(self, requests: int, waiting: int) -> float:
        """Return the seconds a request of so many, answered while `waiting` are always under way.

        As many are asked for before and after: at the beginning all are at the same step, at the end batches empty.
        """
        left = iter(range(requests + 2 * waiting))
        ends: list[float] = []

        async def ask() -> None:
            for _ in left:
                await self._call()
                ends.append(time.perf_counter())

        async with asyncio.TaskGroup() as group:
            for _ in range(waiting):
                group.create_task(ask())
        return (ends[waiting + requests - 1] - ends[waiting - 1]) / requests

    async def play(self, times: Sequence[float]) -> Seconds:
        """Return the seconds of requests that are sent at these times, when all have been answered."""
        begun = time.perf_counter()
        calls = []
        for at in times:
            await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
            calls.append(asyncio.create_task(self._call()))
        return np.array(await asyncio.gather(*calls))

    async def _call(self) -> float:
        row, rows = self.rows.take()
        answer = await self.engine.infer(self.rows.model, rows, deadline=time.monotonic() + PATIENCE)
        self.rows.check(row, answer)
        return answer.waited[0] + answer.ran[0]


def _times(rate: float, seconds: float, random: Random) -> list[float]:
    found, time_ = [], 0.0
    while time_ < seconds:
        time_ += random.expovariate(rate)
        found.append(time_)
    return found


def _simulated(
    served: ServedModel, policy: PolicyConfig, times: Sequence[float], lengths: Sequence[tuple[int, int]]
) -> Seconds:
    simulator = Simulator(SchedulerConfig((served,), 1, policy))
    name, last = served.spec.name, served.spec.stages - 1
    arrivals = [Arrival(at, name, PATIENCE, last, *steps) for at, steps in zip(times, lengths, strict=True)]
    return np.array([record.latency for record in simulator.run(arrivals)])
