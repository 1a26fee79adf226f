"""Batching policies on the live engine, and the same requests simulated with the costs that the model was built with.

One engine for each policy, all with the same model directory, backend and core, asked in turn: each round has a block
for every policy and load, the same arrivals for all. Loads are multiples of what the engine answers one after another.
Seconds of a request are those from the engine's hearing of it to its answer.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import Array
from latebind.bench.exits import Setting
from latebind.bench.server import pinned
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.domain.config import EngineConfig, PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.program.stored import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival

LOADS = (0.5, 1.0, 1.5)
SLOTS = 4096
PATIENCE = 120.0  # seconds that any call may take
WAITING = 3  # batches' worth of rows under way while throughput is measured
WARM_UP = 40
OURS = "lazy+"
SIDES = {
    "serial": PolicyConfig("serial", shed=False),
    "GraphB(0, 4)": PolicyConfig("graph", 4, shed=False),
    "GraphB(0, 8)": PolicyConfig("graph", 8, shed=False),
    "GraphB(0, 16)": PolicyConfig("graph", 16, shed=False),
    "GraphB(5, 16)": PolicyConfig("graph", 16, window=0.005, shed=False),
    OURS: PolicyConfig("lazy+", 16, shed=False),
}

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Plan:
    """Loads as multiples of serial capacity, and in each of so many `rounds` a block of `seconds` for each policy."""

    loads: tuple[float, ...] = LOADS
    rounds: int = 10
    seconds: float = 2.0


@dataclass(frozen=True, slots=True)
class Block:
    """What one policy made of one block: seconds of each request, live and simulated."""

    live: Seconds
    simulated: Seconds


@dataclass(slots=True)
class LiveReport:
    """Blocks by load (a multiple of serial capacity) and policy, and seconds a request when there is always one more.

    `capacity` is what is answered serially, in requests a second; `allowed` the seconds after which an answer is late.
    """

    model: str
    seed: int
    capacity: float
    allowed: float
    blocks: dict[float, dict[str, list[Block]]] = field(default_factory=dict)
    saturated: dict[str, list[float]] = field(default_factory=dict)

    def rows(self) -> list[dict[str, object]]:
        """Return the latencies as rows of a table, `lazy+` against the policy with the least mean at that load."""
        rows: list[dict[str, object]] = []
        for load, sides in self.blocks.items():
            live = {side: np.concatenate([block.live for block in blocks]) for side, blocks in sides.items()}
            simulated = {side: np.concatenate([block.simulated for block in blocks]) for side, blocks in sides.items()}
            best = min((side for side in live if side != OURS), key=lambda side: float(live[side].mean()))
            for side, seconds in live.items():
                rows.append(
                    {
                        "load": f"{load:.0%}",
                        "policy": side,
                        "mean ms": f"{seconds.mean() * 1e3:.2f}",
                        "p99 ms": f"{np.percentile(seconds, 99) * 1e3:.2f}",
                        "late": f"{(seconds > self.allowed).mean():.2%}",
                        "simulated ms": f"{simulated[side].mean() * 1e3:.2f}",
                        "live / simulated": f"{seconds.mean() / simulated[side].mean():.2f}",
                        f"over {OURS}": str(self._over_ours(sides, side)) if side == best else "",
                    }
                )
        return rows

    def throughput_rows(self) -> list[dict[str, object]]:
        """Return the throughputs as rows of a table."""
        return [
            {"policy": side, "requests a second": f"{1 / np.mean(seconds):.0f}"}
            for side, seconds in self.saturated.items()
        ]

    def _over_ours(self, sides: Mapping[str, Sequence[Block]], side: str) -> Interval:
        theirs, ours = (np.array([block.live.mean() for block in sides[name]]) for name in (side, OURS))
        return ratio_of_means(theirs, ours, block=1, seed=self.seed)


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
    async with AsyncExitStack() as stack:
        asked: dict[str, _Asked] = {}
        for side, policy in SIDES.items():
            asked[side] = _Asked(await _started(stack, path, policy, setting), model, inputs)
            await asked[side].saturate(WARM_UP, 1)
        report = LiveReport(model, setting.seed, capacity=0.0, allowed=0.0, saturated={side: [] for side in SIDES})
        size = max(1, round(plan.seconds / await asked["serial"].saturate(WARM_UP, 1)))
        for number in range(plan.rounds):
            for side in random.sample(list(SIDES), len(SIDES)):
                progress("saturation", 0.2 * number / plan.rounds)
                most = SIDES[side].max_batch or 1
                report.saturated[side].append(await asked[side].saturate(size, WAITING * most))
        alone = float(np.mean(report.saturated["serial"]))
        report.capacity, report.allowed = 1.0 / alone, 10.0 * alone
        served = _as_fast_as(path, alone)
        for number in range(plan.rounds):
            for at, load in enumerate(plan.loads):
                progress(f"{load:.0%} of serial capacity", 0.2 + 0.8 * (number + at / len(plan.loads)) / plan.rounds)
                times = _times(load * report.capacity, plan.seconds, random)
                for side in random.sample(list(SIDES), len(SIDES)):
                    block = Block(await asked[side].play(times), _simulated(served, SIDES[side], times))
                    report.blocks.setdefault(load, {name: [] for name in SIDES})[side].append(block)
    return report


async def _started(stack: AsyncExitStack, path: Path, policy: PolicyConfig, setting: Setting) -> EngineClient:
    engine = EngineConfig(cores=(setting.engine_core,), slots=SLOTS, exits=False, backend=setting.backend)
    client = await EngineClient.start(EngineOrder((str(path),), engine=engine, policy=policy))
    stack.push_async_callback(client.close)
    return client


@dataclass(slots=True)
class _Asked:
    """One engine and the rows that it is asked for, in turn."""

    engine: EngineClient
    model: str
    inputs: Mapping[str, Array]
    _next: int = 0

    async def saturate(self, requests: int, waiting: int) -> float:
        """Return the seconds a request with so many always under way."""
        left = iter(range(requests))

        async def ask() -> None:
            for _ in left:
                await self._call()

        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(waiting):
                group.create_task(ask())
        return (time.perf_counter() - begun) / requests

    async def play(self, times: Sequence[float]) -> Seconds:
        """Return the seconds of requests that are sent at these times, when all have been answered."""
        begun = time.perf_counter()
        calls = []
        for at in times:
            await asyncio.sleep(max(0.0, begun + at - time.perf_counter()))
            calls.append(asyncio.create_task(self._call()))
        return np.array(await asyncio.gather(*calls))

    async def _call(self) -> float:
        rows = {name: array[self._next : self._next + 1] for name, array in self.inputs.items()}
        self._next = (self._next + 1) % len(next(iter(self.inputs.values())))
        answer = await self.engine.infer(self.model, rows, deadline=time.monotonic() + PATIENCE)
        return answer.waited[0] + answer.ran[0]


def _times(rate: float, seconds: float, random: Random) -> list[float]:
    found, time_ = [], 0.0
    while time_ < seconds:
        time_ += random.expovariate(rate)
        found.append(time_)
    return found


def _simulated(served: ServedModel, policy: PolicyConfig, times: Sequence[float]) -> Seconds:
    simulator = Simulator(SchedulerConfig((served,), 1, policy))
    last = served.spec.stages - 1
    records = simulator.run([Arrival(time_, served.spec.name, PATIENCE, last) for time_ in times])
    return np.array([record.latency for record in records])


def _as_fast_as(path: Path, alone: float) -> ServedModel:
    """Return the model with the costs it was built with, scaled to what the machine does today."""
    spec, costs = read_spec_and_costs(ModelDirectory.open(path))
    scale = alone / costs.remaining(0, 1)
    stages = tuple(Curve(curve.batches, tuple(scale * s for s in curve.seconds)) for curve in costs.stages)
    return ServedModel(replace(spec, lookups=()), ModelCosts(stages), max_queued=SLOTS)
