"""Measures what leaving early gains in the live engine, without the door: by rows per call, and when saturated.

Two engines with the same model directory, backend and core, one with exits, are asked in turn, block by block. The
seconds of a row run from when the engine hears of it to its answer: of the rows of one call, those that hit leave
first. Throughput is measured with more single rows waiting than a batch holds, for the smallest and the largest batch
size asked for; each side is given the better of the two.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.bench.subject import Folds, Setting, Subject, answerable
from latebind.cli.console import Row, Rows
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.engine.client import EngineClient
from latebind.engine.order import EngineOrder
from latebind.server.gateway import Answer
from research.live.sides import begun

BATCHES = (1, 2, 4, 8)
BLOCK = 24  # rows that one engine is asked for before the other has its turn
WARM_UP = 48
PIECE = 250  # rows of one phase of throughput
WAITING = 3  # batches' worth of rows under way while throughput is measured
PATIENCE = 30.0  # seconds that any call may take
SIDES = ("off", "on")

Seconds = NDArray[np.float64]


@dataclass(slots=True)
class Asked:
    """Results of the calls of one size, row by row in the same order on both sides."""

    rows: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    calls: dict[str, list[float]] = field(default_factory=lambda: {side: [] for side in SIDES})
    classes: dict[str, list[int]] = field(default_factory=lambda: {side: [] for side in SIDES})

    def take(self, side: str, answer: Answer, seconds: float) -> None:
        """Note one call."""
        (output,) = answer.outputs.values()
        self.rows[side] += [waited + ran for waited, ran in zip(answer.waited, answer.ran, strict=True)]
        self.calls[side].append(seconds)
        self.classes[side] += output.argmax(axis=1).tolist()

    def seconds(self, side: str) -> Seconds:
        """Return the seconds of each row."""
        return np.array(self.rows[side])

    def gain(self, seed: int) -> Interval:
        """Return the mean of rows without exits over the mean with exits."""
        return ratio_of_means(self.seconds("off"), self.seconds("on"), block=BLOCK, seed=seed)

    @property
    def tail(self) -> float:
        """The 99th percentile with exits over that without."""
        return float(np.percentile(self.seconds("on"), 99) / np.percentile(self.seconds("off"), 99))

    @property
    def fidelity(self) -> float:
        """The share of rows answered alike."""
        return float((np.array(self.classes["on"]) == np.array(self.classes["off"])).mean())


@dataclass(slots=True)
class EngineReport:
    """By the number of rows in a call; and by the largest batch the seconds a row of each phase, by side."""

    model: str
    seed: int
    asked: dict[int, Asked]
    phases: dict[int, dict[str, list[float]]]

    def rows(self) -> Rows:
        """Return the latencies as rows of a table."""
        return [self._row(batch) for batch in self.asked]

    def throughput_rows(self) -> Rows:
        """Return the throughputs as rows of a table."""
        return [
            {
                "largest batch": most,
                "off per s": f"{1 / np.mean(phases['off']):.0f}",
                "on per s": f"{1 / np.mean(phases['on']):.0f}",
                "times more": str(self._times(phases["off"], phases["on"])),
            }
            for most, phases in self.phases.items()
        ]

    def throughput(self) -> Interval:
        """Return the throughput with exits over that without, each side with its better policy."""
        off, on = (min((phases[side] for phases in self.phases.values()), key=np.mean) for side in SIDES)
        return self._times(off, on)

    def _times(self, off: Sequence[float], on: Sequence[float]) -> Interval:
        return ratio_of_means(off, on, seed=self.seed)

    def _row(self, batch: int) -> Row:
        asked, gain = self.asked[batch], self.asked[batch].gain(self.seed)
        off, on = asked.seconds("off"), asked.seconds("on")
        first = next(iter(self.asked.values())).gain(self.seed)
        return {
            "rows a call": batch,
            "off ms": f"{off.mean() * 1e3:.3f}",
            "on ms": f"{on.mean() * 1e3:.3f}",
            "times less": str(gain),
            "of the first": f"{gain.value / first.value:.3f}",
            "p99 off": f"{np.percentile(off, 99) * 1e3:.2f}",
            "p99 on": f"{np.percentile(on, 99) * 1e3:.2f}",
            "p99 on / off": f"{asked.tail:.3f}",
            "call off ms": f"{np.mean(asked.calls['off']) * 1e3:.3f}",
            "call on ms": f"{np.mean(asked.calls['on']) * 1e3:.3f}",
            "fidelity": f"{asked.fidelity:.4f}",
        }


def run(
    subject: Subject,
    *,
    setting: Setting,
    folds: Folds | None = None,
    batches: Sequence[int] = BATCHES,
    progress: Progress = lambda text, share: None,
) -> EngineReport:
    """Ask for every row in calls of each size, and for throughput.

    Without folds the model is taken as it is. Raises `ConfigError`.
    """
    report = EngineReport(
        subject.model,
        setting.seed,
        asked={batch: Asked() for batch in batches},
        phases={most: {side: [] for side in SIDES} for most in sorted({min(batches), max(batches)})},
    )
    for part in answerable(subject, folds, setting, progress):
        with pinned(setting.door_cores):
            asyncio.run(_measure(report, part, setting))
    return report


async def _measure(report: EngineReport, subject: Subject, setting: Setting) -> None:
    random = Random(setting.seed)
    for most, phases in report.phases.items():
        async with AsyncExitStack() as stack:
            engines = {side: await _started(stack, subject.path, side, most, setting) for side in SIDES}
            for engine in engines.values():
                for start in range(0, WARM_UP, most):
                    await _call(engine, subject, start, start + most)
            if most == max(report.phases):
                for batch, asked in report.asked.items():
                    await _closed_loop(engines, subject, batch, asked, random)
            await _saturated(engines, subject, most, phases, random)


async def _started(stack: AsyncExitStack, path: Path, side: str, most: int, setting: Setting) -> EngineClient:
    order = EngineOrder(
        directories=(str(path),),
        engine=EngineConfig(cores=(setting.engine_core,), exits=side == "on", backend=setting.backend),
        policy=PolicyConfig("graph", max_batch=most),
    )
    return await begun(stack, order)


async def _closed_loop(
    engines: Mapping[str, EngineClient], subject: Subject, batch: int, asked: Asked, random: Random
) -> None:
    """Ask both for every row, `batch` rows a call; which side is first is drawn for each block."""
    for begin, end in pairwise([*range(0, len(subject), BLOCK), len(subject)]):
        for side in random.sample(SIDES, len(SIDES)):
            for start in range(begin, end, batch):
                begun = time.perf_counter()
                answer = await _call(engines[side], subject, start, min(start + batch, end))
                asked.take(side, answer, time.perf_counter() - begun)


async def _saturated(
    engines: Mapping[str, EngineClient], subject: Subject, most: int, phases: Mapping[str, list[float]], random: Random
) -> None:
    """Time phases of single rows, with more rows under way than a batch holds."""
    size = min(PIECE, len(subject))
    for begin in range(0, len(subject) - size + 1, size):
        for side in random.sample(SIDES, len(SIDES)):
            places = iter(range(begin, begin + size))

            async def ask(engine: EngineClient = engines[side], places: Iterator[int] = places) -> None:
                for place in places:
                    await _call(engine, subject, place, place + 1)

            begun = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                for _ in range(WAITING * most):
                    group.create_task(ask())
            phases[side].append((time.perf_counter() - begun) / size)


async def _call(engine: EngineClient, subject: Subject, start: int, end: int) -> Answer:
    return await engine.infer(subject.model, subject.rows(start, end), deadline=time.monotonic() + PATIENCE)
