"""Measures what leaving early gains over HTTP: one server with exits and one without, asked in turn, image by image.

Both have the same model directory, backend, worker and cores. Blocks of requests alternate between the two, so
that a change of the machine's speed affects both alike. With folds, each row is sent to thresholds that were calibrated
on other rows, so one set of rows is enough, and every row is new to the thresholds that answer it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from latebind.bench.client import Answered, Array, Body, Caller, encode
from latebind.bench.rounds import Progress
from latebind.bench.server import pinned, serving
from latebind.bench.statistics import Interval, ratio_of_means
from latebind.bench.subject import Folds, Setting, Subject, answerable
from latebind.cli.console import Rows
from latebind.domain.errors import ConfigError

BLOCK = 25
WARM_UP = 50


@dataclass(frozen=True, slots=True)
class ExitsReport:
    """One paired run. Seconds are of whole HTTP requests; `gain` is mean without exits over mean with."""

    model: str
    requests: int
    seed: int
    seconds_on: NDArray[np.float64]
    seconds_off: NDArray[np.float64]
    gain: Interval
    fidelity: float
    accuracy_on: float | None
    accuracy_off: float | None
    left_at: dict[int, float]
    identical: bool

    def rows(self) -> Rows:
        """Return the latencies as rows of a table."""
        return [
            {
                "exits": name,
                "mean ms": f"{seconds.mean() * 1e3:.3f}",
                "p50 ms": f"{np.percentile(seconds, 50) * 1e3:.3f}",
                "p99 ms": f"{np.percentile(seconds, 99) * 1e3:.3f}",
                "accuracy": "" if accuracy is None else f"{accuracy:.4f}",
            }
            for name, seconds, accuracy in (
                ("off", self.seconds_off, self.accuracy_off),
                ("on", self.seconds_on, self.accuracy_on),
            )
        ]


def run(
    subject: Subject,
    *,
    setting: Setting,
    folds: Folds | None = None,
    progress: Progress = lambda text, share: None,
) -> ExitsReport:
    """Ask both servers for every row, one row a request, closed loop.

    Without folds the model is taken as it is. Raises `ConfigError`.
    """
    answers: dict[str, list[Answered]] = {"on": [], "off": []}
    labels: list[Array] = []
    for part in answerable(subject, folds, setting, progress):
        for name, given in ask_both(part, setting).items():
            answers[name] += given
        if part.labels is not None:
            labels.append(part.labels)
    return _report(subject.model, setting.seed, answers, np.concatenate(labels) if labels else None)


def ask_both(subject: Subject, setting: Setting) -> dict[str, list[Answered]]:
    """Return what a server with exits ("on") and one without ("off") answered to each row."""
    repository, model = subject.repository, subject.model
    bodies = [encode(subject.row(number)) for number in range(len(subject))]
    options = ["--model", model, "--cores", str(setting.engine_core)]
    options += ["--policy", "graph", "--max-batch", "1", "--deadline-ms", "5000"]
    if setting.backend is not None:
        options += ["--backend", setting.backend]
    with (
        pinned(setting.door_cores),
        serving(repository, *options, "--exits", cores=setting.door_cores, log=setting.log) as on,
        serving(repository, *options, "--no-exits", cores=setting.door_cores, log=setting.log) as off,
    ):
        callers = {"on": Caller(on, model), "off": Caller(off, model)}
        answers = _ask(callers, bodies, Random(setting.seed))
        for caller in callers.values():
            caller.close()
    return answers


def _ask(callers: Mapping[str, Caller], bodies: Sequence[Body], random: Random) -> dict[str, list[Answered]]:
    """Send every body to every caller, in blocks; which caller is first is drawn for each block."""
    for caller in callers.values():
        for body in bodies[:WARM_UP]:
            caller(body)
    answers: dict[str, list[Answered]] = {name: [] for name in callers}
    for start in range(0, len(bodies), BLOCK):
        for name in random.sample(list(callers), len(callers)):
            answers[name].extend(callers[name](body) for body in bodies[start : start + BLOCK])
    refused = Counter(answer.status for given in answers.values() for answer in given if answer.status != 200)
    if refused:
        raise ConfigError(f"the servers answered with {dict(refused)}: see their log")
    return answers


def _report(model: str, seed: int, answers: Mapping[str, list[Answered]], labels: Array | None) -> ExitsReport:
    on, off = answers["on"], answers["off"]
    seconds_on = np.array([answer.seconds for answer in on])
    seconds_off = np.array([answer.seconds for answer in off])
    classes_on, classes_off = _classes(on), _classes(off)
    stages = Counter(answer.left_at for answer in on)
    return ExitsReport(
        model=model,
        requests=len(on),
        seed=seed,
        seconds_on=seconds_on,
        seconds_off=seconds_off,
        gain=ratio_of_means(seconds_off, seconds_on, block=BLOCK, seed=seed),
        fidelity=float((classes_on == classes_off).mean()),
        accuracy_on=None if labels is None else float((classes_on == labels).mean()),
        accuracy_off=None if labels is None else float((classes_off == labels).mean()),
        left_at={stage: stages[stage] / len(on) for stage in sorted(stages)},
        identical=all(
            np.array_equal(a.outputs[name], b.outputs[name]) for a, b in zip(on, off, strict=True) for name in a.outputs
        ),
    )


def _classes(answers: Sequence[Answered]) -> NDArray[np.int64]:
    return np.array([int(next(iter(answer.outputs.values()))[0].argmax()) for answer in answers])
