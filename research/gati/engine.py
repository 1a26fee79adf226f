"""Measures what leaving early gains in the live engine, without the frontend, by rows of a call.

Two engines with the same model directory, backend and core, one with exits, are asked in turn, block by block. The
seconds of a row run from when the engine hears of it to its answer: of the rows of one call, those that hit leave
first.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import numpy as np

from latebind.bench.rounds import Progress
from latebind.bench.server import pinned
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.bench.subject import Folds, Setting, Subject, answerable
from latebind.cli.console import Row, Rows
from latebind.engine.client import EngineClient
from research.live import started
from research.sides import Figures, Side, graph

BATCHES = (1, 2, 4, 8)
BLOCK = 24  # rows that one engine is asked for before the other has its turn
WARM_UP = 48
PATIENCE = 30.0  # seconds that any call may take
OFF, ON = "off", "on"


@dataclass(slots=True)
class EngineReport:
    """Seconds and classes row by row, by rows of a call and side."""

    seed: int
    seconds: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    classes: dict[tuple[int, str], list[int]] = field(default_factory=dict)

    def gain(self, batch: int) -> Interval:
        """Return the mean of rows without exits over the mean with exits."""
        return ratio_of_means(self.seconds[batch, OFF], self.seconds[batch, ON], block=BLOCK, seed=self.seed)

    def rows(self) -> Rows:
        """Return the latencies as rows of a table."""
        rows: Rows = []
        for batch in dict.fromkeys(batch for batch, _ in self.seconds):
            off, on = (np.array(self.seconds[batch, side]) * 1e3 for side in (OFF, ON))
            tails = [float(np.percentile(some, 99)) for some in (off, on)]
            same = np.array(self.classes[batch, OFF]) == np.array(self.classes[batch, ON])
            row: Row = {"rows a call": batch, "off ms": f"{off.mean():.3f}", "on ms": f"{on.mean():.3f}"}
            row |= {"times less": str(self.gain(batch))}
            row |= {"of the first": f"{self.gain(batch).value / self.gain(next(iter(self.seconds))[0]).value:.3f}"}
            row |= {"p99 off": f"{tails[0]:.2f}", "p99 on": f"{tails[1]:.2f}"}
            row |= {"p99 on / off": f"{tails[1] / tails[0]:.3f}"}
            rows.append(row | {"fidelity": f"{same.mean():.4f}"})
        return rows


def run(
    subject: Subject, *, setting: Setting, folds: Folds | None, batches: Sequence[int], progress: Progress
) -> EngineReport:
    """Ask for every row in calls of each size. Without folds the model is taken as it is."""
    report = EngineReport(setting.seed)
    for part in answerable(subject, folds, setting, progress):
        with pinned(setting.frontend_cores):
            asyncio.run(_measure(report, part, setting, batches))
    return report


async def _measure(report: EngineReport, subject: Subject, setting: Setting, batches: Sequence[int]) -> None:
    random, names, most = Random(setting.seed), (OFF, ON), max(batches)
    async with AsyncExitStack() as stack:
        sides = {name: Side(name, graph(most, shed=True), exits=name == ON) for name in names}
        engines = {name: await started(stack, (subject.path,), side, setting) for name, side in sides.items()}
        for engine in engines.values():
            for start in range(0, WARM_UP, most):
                await _call(engine, subject, start, start + most)
        for batch in batches:
            for begin, end in pairwise([*range(0, len(subject), BLOCK), len(subject)]):
                for name in random.sample(names, 2):
                    for start in range(begin, end, batch):
                        seconds, classes = await _call(engines[name], subject, start, min(start + batch, end))
                        report.seconds.setdefault((batch, name), []).extend(seconds.tolist())
                        report.classes.setdefault((batch, name), []).extend(classes)


async def _call(engine: EngineClient, subject: Subject, start: int, end: int) -> tuple[Figures, list[int]]:
    """Return the seconds of each row in the engine, and its class."""
    answer = await engine.infer(subject.model, subject.rows(start, end), deadline=time.monotonic() + PATIENCE)
    (output,) = answer.outputs.values()
    return np.array(answer.waited) + np.array(answer.ran), output.argmax(axis=1).tolist()
