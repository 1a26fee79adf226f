"""What early exits gain over HTTP: a server with exits and one without get the same requests, in turns.

Both have the same model directory, backend, worker and cores, so that a change of the machine's speed affects both
alike. `closed` asks row by row, for paired differences; with folds, each row is sent to thresholds that were calibrated
on other rows, so one set of rows is enough, and every row is new to the thresholds that answer it. `open_loop` sends
rows at Poisson times without waiting for answers: what clients see under load.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import Answered, Array, Body, Caller, encode, poisson_load
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned, serving
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.bench.subject import Folds, Setting, Subject, answerable
from latebind.cli.console import Row, Rows
from latebind.domain.errors import ConfigError
from latebind.learned.report import QUARTERS, by_length
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory

BLOCK = 25  # requests that a server gets in its turn
PHASES = 4  # turns of each server under load
WARM_UP = 50
GROUPS = 8  # of lengths
SIDES = {"off": "--no-exits", "on": "--exits"}


@dataclass(slots=True)
class Side:
    """One server: every answer in the order sent, and for how many seconds requests were sent to it."""

    answers: list[Answered] = field(default_factory=list)
    took: float = 0.0

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds of the answered requests, from the time they were meant to be sent."""
        return np.array([answer.seconds for answer in self.answers if answer.status == 200])

    @property
    def classes(self) -> NDArray[np.int64]:
        """The class of each answer, -1 if there was none."""
        return np.array([_class(answer) if answer.status == 200 else -1 for answer in self.answers])

    @property
    def left_at(self) -> dict[int, float]:
        """The share of answers that left at each stage."""
        stages = Counter(answer.left_at for answer in self.answers if answer.status == 200)
        return {stage: stages[stage] / stages.total() for stage in sorted(stages)}


@dataclass(frozen=True, slots=True)
class Compared:
    """The two sides under the same requests; `labels` and `lengths` are those of the requests in order, if any."""

    off: Side
    on: Side
    labels: Array | None = None
    lengths: NDArray[np.int64] | None = None

    def gain(self, seed: int) -> Interval:
        """Return the mean seconds without exits over those with, if both answered everything."""
        return ratio_of_means(self.off.seconds, self.on.seconds, block=BLOCK, seed=seed)

    @property
    def fidelity(self) -> float:
        """The share of requests answered on both sides whose answers agree."""
        return self._agreement(self.on.classes >= 0)

    @property
    def identical(self) -> bool:
        """Whether all answers are the same bit for bit."""
        return all(
            np.array_equal(on.outputs[name], off.outputs[name])
            for on, off in zip(self.on.answers, self.off.answers, strict=True)
            for name in on.outputs
        )

    def rows(self) -> Rows:
        """Return both sides as rows of a table."""
        return [self._row("off", self.off, 1.0), self._row("on", self.on, self.fidelity)]

    def exit_rows(self) -> Rows:
        """Return a row for each stage at which requests left: how many, how soon, and how often like the base model.

        The fidelity is NaN where the other side answered none of them.
        """
        rows: Rows = []
        for stage, share in self.on.left_at.items():
            here = np.array([answer.left_at == stage for answer in self.on.answers])
            seconds = [answer.seconds for answer in self.on.answers if answer.left_at == stage]
            rows.append(
                {
                    "left after stage": stage,
                    "share": f"{share:.1%}",
                    "mean ms": f"{np.mean(seconds) * 1e3:.2f}",
                    "fidelity": f"{self._agreement(here):.3f}",
                }
            )
        return rows

    def length_rows(self) -> Rows:
        """Return a row for each group of lengths, with about as many requests in each: their results with exits."""
        if self.lengths is None:
            return []
        rows: Rows = []
        seconds = np.array([one.seconds if one.status == 200 else nan for one in self.on.answers])
        for label, here in by_length(self.lengths, GROUPS):
            answered = seconds[here][~np.isnan(seconds[here])] * 1e3
            rows.append(
                {
                    "length": label,
                    "requests": int(here.sum()),
                    "answered": f"{len(answered) / here.sum():.1%}",
                    "mean ms": f"{answered.mean():.3f}" if len(answered) else "",
                    "p50 ms": f"{np.percentile(answered, 50):.3f}" if len(answered) else "",
                    "p99 ms": f"{np.percentile(answered, 99):.3f}" if len(answered) else "",
                }
            )
        return rows

    def gain_rows(self) -> Rows:
        """Return a row for each quarter of the lengths: means of requests that both sides answered, and fidelity."""
        if self.lengths is None:
            return []
        both = np.array([one.status == other.status == 200 for one, other in zip(*self._answers, strict=True)])
        seconds = [np.array([one.seconds for one in answers]) for answers in self._answers]
        last = max(one.left_at for answers in self._answers for one in answers)  # the side off may be one stage
        early = np.array([one.left_at < last for one in self.on.answers])
        rows: Rows = []
        for label, here in by_length(self.lengths, QUARTERS):
            off, on = (each[here & both].mean() if (here & both).any() else nan for each in seconds)
            rows.append(
                {
                    "length": label,
                    "requests": int(here.sum()),
                    "off mean ms": f"{off * 1e3:.3f}",
                    "on mean ms": f"{on * 1e3:.3f}",
                    "off / on": f"{off / on:.3f}",
                    "left early": f"{early[here & both].mean():.1%}" if (here & both).any() else "",
                    "fidelity": f"{self._agreement(here & both):.4f}",
                }
            )
        return rows

    @property
    def _answers(self) -> tuple[list[Answered], list[Answered]]:
        return self.off.answers, self.on.answers

    def _agreement(self, these: NDArray[np.bool_]) -> float:
        both = these & (self.off.classes >= 0)
        return float((self.off.classes == self.on.classes)[both].mean()) if both.any() else nan

    def _row(self, name: str, side: Side, fidelity: float) -> Row:
        seconds, answered = side.seconds, side.classes >= 0
        right = None if self.labels is None else (side.classes == self.labels)[answered].mean()
        return {
            "exits": name,
            "mean ms": f"{seconds.mean() * 1e3:.3f}",
            "p50 ms": f"{np.percentile(seconds, 50) * 1e3:.3f}",
            "p99 ms": f"{np.percentile(seconds, 99) * 1e3:.3f}",
            "per s": f"{len(seconds) / side.took:.0f}",
            "answered": f"{answered.mean():.1%}",
            "fidelity": f"{fidelity:.4f}",
            "accuracy": "" if right is None else f"{right:.4f}",
        }


def closed(
    subject: Subject,
    *,
    setting: Setting,
    folds: Folds | None = None,
    full: str | None = None,
    progress: Progress = lambda text, share: None,
) -> Compared:
    """Ask both servers for every row, one row a request, block by block; which is first is drawn for each block.

    Without folds the model is used unchanged. The side without exits serves `full`, another model of the folder, if one
    is named: stages take longer than the uncut network, and so would be too easy to beat. Raises `ConfigError`, also if
    a server does not answer.
    """
    off = None if full is None else replace(subject, model=full)
    if off is not None:
        _check_same_rows(subject, off)
    sides = {name: Side() for name in SIDES}
    labels: list[Array] = []
    lengths: list[NDArray[np.int64]] = []
    options = ["--cores", str(setting.engine_core), "--policy", "graph", "--max-batch", "1", "--deadline-ms", "5000"]
    if setting.backend is not None:
        options += ["--backend", setting.backend]
    for part in answerable(subject, folds, setting, progress):
        bodies = [encode(part.row(number)) for number in range(len(part))]
        if part.labels is not None:
            labels.append(part.labels)
        if (own := part.lengths()) is not None:
            lengths.append(own)
        with pinned(setting.frontend_cores), _served(part, options, setting, bodies, off=off) as (callers, _):
            random = Random(setting.seed)
            for start in range(0, len(bodies), BLOCK):
                for name in random.sample(list(SIDES), len(SIDES)):
                    answers = _ask(callers[name], bodies[start : start + BLOCK])
                    sides[name].answers += answers
                    sides[name].took += sum(answer.seconds for answer in answers)
    known = np.concatenate(lengths) if lengths else None
    return Compared(sides["off"], sides["on"], np.concatenate(labels) if labels else None, known)


def open_loop(
    subject: Subject,
    *,
    requests: int = 2000,
    rate: float | None = None,
    load: float = 0.7,
    deadline: float = 1.0,
    seed: int = 0,
    log: Path | None = None,
) -> tuple[Compared, float]:
    """Send random rows, one a request, in turns of equal arrivals; also return the requests a second.

    By default these are `load` times what the server without exits answers one by one.
    """
    drawn = np.random.default_rng(seed).integers(0, len(subject), requests)
    bodies = [encode(subject.row(number), timeout=deadline) for number in drawn]
    sides = {name: Side() for name in SIDES}
    setting = Setting(frontend_cores=(), log=log)  # any core, as a user's server has them
    with _served(subject, (), setting, bodies) as (callers, alone):
        rate = rate or load / alone["off"]
        for number, piece in enumerate(np.array_split(np.arange(requests), PHASES)):
            part = [bodies[i] for i in piece]
            for name in Random(seed + number).sample(list(SIDES), len(SIDES)):
                begun, url = time.perf_counter(), f"http://{callers[name].host}"
                sides[name].answers += asyncio.run(
                    poisson_load(url, subject.model, part, rate=rate, seed=seed + number)
                )
                sides[name].took += time.perf_counter() - begun
    labels, lengths = subject.labels, subject.lengths()
    labels, lengths = None if labels is None else labels[drawn], None if lengths is None else lengths[drawn]
    return Compared(sides["off"], sides["on"], labels, lengths), rate


@contextmanager
def _served(
    subject: Subject, options: Sequence[str], setting: Setting, bodies: Sequence[Body], *, off: Subject | None = None
) -> Iterator[tuple[dict[str, Caller], dict[str, float]]]:
    """Serve with exits and without, both warm; yields a client of each, and the mean seconds of a request alone."""
    with ExitStack() as stack:
        callers = {}
        for name, exits in SIDES.items():
            asked = subject if off is None or name == "on" else off
            words = ("--model", asked.model, *options, exits)
            served = serving(asked.repository, *words, cores=setting.frontend_cores, log=setting.log)
            callers[name] = Caller(stack.enter_context(served), asked.model)
            stack.callback(callers[name].close)
        warm = {name: _ask(caller, bodies[:WARM_UP]) for name, caller in callers.items()}
        later = {name: [one.seconds for one in some[len(some) // 2 :]] for name, some in warm.items()}
        yield callers, {name: float(np.mean(seconds)) for name, seconds in later.items()}


def _check_same_rows(subject: Subject, off: Subject) -> None:
    """Raise `ConfigError` if two models differ in what they take or answer."""
    one, other = (read_model(ModelDirectory.open(each.path)) for each in (subject, off))
    if (one.inputs, one.outputs) != (other.inputs, other.outputs):
        raise ConfigError(
            f"{off.model} takes or answers other rows than {subject.model}: name a build of the same network"
        )


def _ask(caller: Caller, bodies: Sequence[Body]) -> list[Answered]:
    answers = [caller(body) for body in bodies]
    refused: Mapping[int, int] = Counter(answer.status for answer in answers if answer.status != 200)
    if refused:
        raise ConfigError(f"the server does not answer the data given: status {dict(refused)}; see its log")
    return answers


def _class(answer: Answered) -> int:
    return int(next(iter(answer.outputs.values()))[0].argmax())
