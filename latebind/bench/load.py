"""Sends Poisson traffic over HTTP with exits off and on: what clients see, as a table and a page."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import nan
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import Answered, Body, Caller, encode, poisson_load
from latebind.bench.server import serving
from latebind.bench.subject import Subject
from latebind.cli.console import Row, Rows
from latebind.domain.errors import ConfigError

PHASES = 4
WARM_UP = 50
SIDES = {"off": "--no-exits", "on": "--exits"}


@dataclass(frozen=True, slots=True)
class Side:
    """One side of the comparison: every answer in the order sent, and answers a second."""

    name: str
    answers: list[Answered]
    throughput: float
    classes: NDArray[np.int64] = field(repr=False)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of the answered requests, from the time they were meant to be sent."""
        return np.array([answer.seconds for answer in self.answers if answer.status == 200])

    @property
    def left_at(self) -> dict[int, float]:
        """The share of answers that left at each stage."""
        stages = Counter(answer.left_at for answer in self.answers if answer.status == 200)
        total = sum(stages.values())
        return {stage: stages[stage] / total for stage in sorted(stages)}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The two sides under the same arrivals; `labels` are those of the requests in order, if there are any."""

    model: str
    rate: float
    seed: int
    off: Side
    on: Side
    labels: NDArray[np.int64] | None

    @property
    def fidelity(self) -> float:
        """The share of requests answered on both sides whose answers agree."""
        return self._agreement(self.on.classes >= 0)

    def rows(self) -> Rows:
        """Return both sides as rows of a table."""
        return [self._row(side, fidelity) for side, fidelity in ((self.off, 1.0), (self.on, self.fidelity))]

    def exit_rows(self) -> Rows:
        """Return a row for each stage at which requests left: how many, how soon, and how often as the base model."""
        return [
            {
                "left behind stage": stage,
                "share": f"{share:.1%}",
                "mean ms": f"{self.seconds_at(stage).mean() * 1e3:.2f}",
                "fidelity": f"{self.fidelity_at(stage):.3f}",
            }
            for stage, share in self.on.left_at.items()
        ]

    def seconds_at(self, stage: int) -> NDArray[np.float64]:
        """Return the seconds of the requests that left at a stage."""
        return np.array([answer.seconds for answer in self.on.answers if answer.left_at == stage])

    def fidelity_at(self, stage: int) -> float:
        """Return the share of answers that agree, of the requests that left at a stage; NaN where the other side
        answered none of them."""
        return self._agreement(np.array([answer.left_at == stage for answer in self.on.answers]))

    def _agreement(self, these: NDArray[np.bool_]) -> float:
        both = these & (self.off.classes >= 0)
        return float((self.off.classes == self.on.classes)[both].mean()) if both.any() else nan

    def accuracy(self, side: Side) -> float | None:
        """The share of right answers, of those that came."""
        if self.labels is None:
            return None
        return float((side.classes == self.labels)[side.classes >= 0].mean())

    def _row(self, side: Side, fidelity: float) -> Row:
        accuracy = self.accuracy(side)
        return {
            "exits": side.name,
            "mean ms": f"{side.seconds.mean() * 1e3:.2f}",
            "p50": f"{np.percentile(side.seconds, 50) * 1e3:.2f}",
            "p99": f"{np.percentile(side.seconds, 99) * 1e3:.2f}",
            "per s": f"{side.throughput:.0f}",
            "answered": f"{len(side.seconds) / len(side.answers):.1%}",
            "fidelity": f"{fidelity:.3f}",
            "accuracy": "" if accuracy is None else f"{accuracy:.3f}",
        }


def run(
    subject: Subject,
    *,
    requests: int = 2000,
    rate: float | None = None,
    load: float = 0.7,
    deadline: float = 1.0,
    options: Sequence[str] = (),
    seed: int = 0,
    log: Path | None = None,
) -> LoadReport:
    """Send `requests` rows that are drawn to a server without and one with exits, in turns of equal arrivals.

    `rate` is in requests a second; by default `load` times what the server without exits answers one by one.
    """
    random = np.random.default_rng(seed)
    repository, model = subject.repository, subject.model
    drawn = random.integers(0, len(subject), requests)
    bodies = [encode(subject.row(number), timeout=deadline) for number in drawn]
    with ExitStack() as stack:
        common = ("--model", model, *options)
        urls = {name: stack.enter_context(serving(repository, *common, flag, log=log)) for name, flag in SIDES.items()}
        alone = {name: _closed_loop(url, model, bodies[:WARM_UP]) for name, url in urls.items()}
        rate = rate or load / alone["off"]
        answers: dict[str, list[Answered]] = {name: [] for name in urls}
        seconds = dict.fromkeys(urls, 0.0)
        for number, piece in enumerate(np.array_split(np.arange(requests), PHASES)):
            part = [bodies[i] for i in piece]
            for name in Random(seed + number).sample(list(urls), len(urls)):
                got, took = asyncio.run(_timed(urls[name], model, part, rate, seed + number))
                answers[name].extend(got)
                seconds[name] += took
    sides = {name: _side(name, answers[name], seconds[name]) for name in urls}
    chosen = None if subject.labels is None else subject.labels[drawn].astype(np.int64)
    return LoadReport(model, rate, seed, sides["off"], sides["on"], chosen)


def _closed_loop(url: str, model: str, bodies: Sequence[Body]) -> float:
    """Warm a server up; return the mean seconds of a request on its own."""
    caller = Caller(url, model)
    answers = [caller(body) for body in bodies]
    caller.close()
    if any(answer.status != 200 for answer in answers):
        raise ConfigError(f"{model} does not answer the data given: {Counter(a.status for a in answers)}")
    return float(np.mean([answer.seconds for answer in answers[len(answers) // 2 :]]))


async def _timed(url: str, model: str, bodies: Sequence[Body], rate: float, seed: int) -> tuple[list[Answered], float]:
    loop = asyncio.get_running_loop()
    begun = loop.time()
    answers = await poisson_load(url, model, bodies, rate=rate, seed=seed)
    return answers, loop.time() - begun


def _side(name: str, answers: list[Answered], seconds: float) -> Side:
    classes = [
        int(next(iter(answer.outputs.values()))[0].argmax()) if answer.status == 200 else -1 for answer in answers
    ]
    answered = sum(answer.status == 200 for answer in answers)
    return Side(name, answers, answered / seconds, np.array(classes))
