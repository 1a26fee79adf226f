"""Measures how soon a change of the traffic is detected: the adaptation service's own parts, without a clock.

In each trial a stream by Zipf's law settles and a version is made for it. Then either another class dominates, or every
input becomes brighter. A change counts as detected when a guard acts: the version in use is left for an older one or
for the whole network, or a new version is requested because of the change. Retrainings that were due anyway do not
count. Three guards listen: to the classes answered, to the looks of sampled inputs, to the fidelity of sampled answers.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.adaptation.adapter import Adapter
from latebind.adaptation.controller import (
    BUILT,
    CHANGED,
    FELL,
    FULL_DEPTH,
    SHIFTED,
    SHOWN,
    Decision,
    Retrain,
    Use,
    number_of,
)
from latebind.adaptation.messages import Answered, Sampler
from latebind.bench.subject import Subject, copied
from latebind.cli.console import Rows as TableRows
from latebind.domain.config import AdaptationConfig
from latebind.domain.errors import ConfigError
from latebind.learned.activations import Observed
from latebind.learned.build import recalibrate
from latebind.learned.head import Head, HeadFunction
from latebind.learned.promise import upper_bound
from latebind.learned.samples import Samples
from latebind.repository.directory import ModelDirectory
from research.gati.locality import brighter, zipf_stream

CALIBRATE_SHARE = 0.4
SETTLE, AFTER = 3_000, 2_000  # requests before the change and after
LESSON_TAKES = 100  # requests that are answered meanwhile
ALPHA = 3.0
MOST_SAMPLES = 500  # until a change is caught
CLEARLY = 0.95  # the confidence with which fidelity must be under its target to have fallen clearly

Rows = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Trial:
    """Requests and samples from the change until a guard acted (None: it did not), and fidelity.

    `unguarded` is that of the 2,000 requests after the change had the version been kept, `realized` of those as they
    were answered. `guard` is the one that acted first: "classes", "looks" or "fidelity".
    """

    change: str
    requests: int | None
    samples: int | None
    unguarded: float
    realized: float
    after: int = AFTER
    guard: str = ""

    def fell_clearly(self, target: float) -> bool:
        """Return whether fidelity fell by more than chance: its upper Clopper-Pearson bound is below the target."""
        return upper_bound(round(self.unguarded * self.after), self.after, CLEARLY) < target

    def passed(self, target: float) -> bool:
        """Return whether it was caught in time, or there was nothing to catch."""
        return (self.samples is not None and self.samples <= MOST_SAMPLES) or self.unguarded >= target


def run(
    subject: Subject,
    *,
    trials: int,
    fidelity: float,
    by: float,
    seed: int,
    sample: float = 0.2,
    settle: int = SETTLE,
    after: int = AFTER,
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> list[Trial]:
    """Run `trials` of each change, `settle` requests before and `after` behind it.

    `by` is what is added to inputs to make them brighter. Raises `ConfigError` where there are no labels, and where no
    lookup pays at this `fidelity`.
    """
    if subject.labels is None:
        raise ConfigError("a stream by classes needs labels: give data that has them")
    found, labels = list[Trial](), subject.labels
    rows = {
        bright: {name: torch.from_numpy(array) for name, array in some.items()}
        for bright, some in ((False, subject.arrays), (True, brighter(subject.arrays, by)))
    }
    order = np.random.default_rng(seed).permutation(len(labels))
    held, sent = np.split(order, [round(CALIBRATE_SHARE * len(labels))])
    with TemporaryDirectory() as folder:
        copy = copied(subject.repository, subject.model, Path(folder))
        others = Samples({name: tensor[np.sort(held)] for name, tensor in rows[False].items()})
        if not recalibrate(copy, others, fidelity=fidelity, seed=seed).caches.lookups:
            raise ConfigError(
                f"calibrated on {CALIBRATE_SHARE:.0%} of the rows at a fidelity of {fidelity:g}, its copy has "
                "no lookup that pays: give a lower --fidelity or data with more rows, or repeat it while the machine "
                "has nothing else to do"
            )
        looked: dict[bool, Observed] = {}
        for number in range(2 * trials):
            progress(f"trial {number + 1} of {2 * trials}", number / (2 * trials))
            config = AdaptationConfig(on=True, sample=sample, folder=f"{folder}/adapted-{number}")
            adapter = Adapter(ModelDirectory.open(copy.path), config, threads=1, backend=None)
            looked = looked or {
                bright: adapter.look(Samples(dict(some)).ordered(adapter.spec.inputs)) for bright, some in rows.items()
            }
            random = np.random.default_rng(seed + number)
            street = _Street(adapter, rows, looked=looked, random=random, sample=sample)
            found.append(street.trial(("mix", "brightness")[number % 2], labels, sent, settle, after))
    return found


@dataclass(frozen=True, slots=True)
class _Given:
    """The answers of one version to every row: class, if it is the base model's, if the row leaves early."""

    classes: Rows
    right: NDArray[np.bool_]
    early: NDArray[np.bool_]


class _Street:
    """One trial: the version in use answers requests, and the adapter is told of them."""

    def __init__(
        self,
        adapter: Adapter,
        rows: Mapping[bool, Mapping[str, Tensor]],
        *,
        looked: Mapping[bool, Observed],
        random: np.random.Generator,
        sample: float,
    ) -> None:
        self._adapter, self._looked, self._random = adapter, looked, random
        self._sampler = Sampler(sample, random.random)
        self._rows = rows  # True: brighter
        self._used = adapter.controller.wanted
        self._answers: dict[tuple[str, bool], _Given] = {}
        self._lesson: tuple[int, Retrain] | None = None
        self._now = self._samples = 0
        self._guard = ""  # that has acted

    def trial(self, change: str, labels: Array, sent: Rows, settle: int, after: int) -> Trial:
        stream = zipf_stream(labels[sent], alpha=ALPHA, phases=2, length=max(settle, after), random=self._random)
        rows, bright = sent[stream], change == "brightness"
        second = rows[settle - after : settle] if bright else rows[len(rows) // 2 :][:after]
        for row in rows[:settle]:
            self._ask(int(row), bright=False)
        unguarded = self._by_version(self._used, bright=bright).right[second].mean()
        caught: tuple[int | None, int | None, str] = None, None, ""
        samples, guarded = self._samples, []
        self._guard = ""
        for number, row in enumerate(second, start=1):
            guarded.append(self._ask(int(row), bright=bright))
            if caught[0] is None and self._guard:
                caught = number, self._samples - samples, self._guard
        requests, taken, guard = caught
        return Trial(change, requests, taken, float(unguarded), float(np.mean(guarded)), len(second), guard)

    def _ask(self, row: int, *, bright: bool) -> bool:
        """Answer one request; return whether the base model answers the same."""
        self._now += 1
        given = self._by_version(self._used, bright=bright)
        answer, same, early = int(given.classes[row]), bool(given.right[row]), bool(given.early[row])
        controller = self._adapter.controller
        self._carry_out(controller.answered(answer))
        if (draw := self._sampler.draw(early)) is not None:
            self._samples += draw.shows
            data = b"".join(rows[row].numpy().tobytes() for rows in self._rows[bright].values())
            end = b"" if early else self._looked[bright].answers[row].numpy().tobytes()
            sampled = Answered(0, answer, number_of(self._used), draw, data, end)
            self._carry_out(self._adapter.see([(controller.total, sampled)]))
        if self._lesson is not None and self._now >= self._lesson[0]:
            self._teach(self._lesson[1])
        return same

    def _teach(self, lesson: Retrain) -> None:
        self._lesson = None
        adapter = self._adapter
        version = adapter.lesson(lesson)()
        self._carry_out(adapter.learned(version, float(self._now)))

    def _carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, Use):
                self._used = decision.version
                acted = decision.reason != SHOWN
            else:
                acted = decision.moved or decision.alarmed
                self._lesson = (self._now + LESSON_TAKES, decision)
            if acted and not self._guard:
                self._guard = _guard(decision.reason)

    def _by_version(self, version: str, *, bright: bool) -> _Given:
        """Return what a version answers to every row."""
        key = (version, bright)
        if key not in self._answers:
            observed = self._looked[bright]
            base = observed.answers.argmax(dim=1).numpy()
            given, waits = base.copy(), np.ones(len(base), dtype=np.bool_)
            for features, (head, threshold) in zip(observed.features, self._heads(version), strict=True):
                said, scores = HeadFunction(head)(features.numpy())
                hit = waits & (scores >= threshold)
                given[hit] = said.argmax(axis=1)[hit]
                waits &= ~hit
            self._answers[key] = _Given(given, given == base, ~waits)
        return self._answers[key]

    def _heads(self, version: str) -> list[tuple[Head, float]]:
        built = self._adapter.built_lookups()
        if version == FULL_DEPTH:
            return [(head, float("inf")) for head, _ in built.values()]
        if version == BUILT:
            return list(built.values())
        made = self._adapter.versions.lookups(version)
        return [made.get(name, (head, float("inf"))) for name, (head, _) in built.items()]


def _guard(reason: str) -> str:
    """Return the guard that gives this reason."""
    if reason.startswith(FELL):
        return "fidelity"
    return "looks" if reason.startswith((CHANGED, SHIFTED)) else "classes"


def summary(trials: list[Trial], target: float) -> TableRows:
    """Return a row for each kind of change."""
    rows: TableRows = []
    for change in dict.fromkeys(trial.change for trial in trials):
        of = [trial for trial in trials if trial.change == change]
        caught = [trial for trial in of if trial.requests is not None]
        guards = Counter(trial.guard for trial in caught).most_common()
        rows.append(
            {
                "change": change,
                "trials": len(of),
                "fidelity fell": sum(trial.unguarded < target for trial in of),
                "clearly": sum(trial.fell_clearly(target) for trial in of),
                "caught": len(caught),
                "by": ", ".join(f"{guard} {count}" for guard, count in guards),
                "passed": sum(trial.passed(target) for trial in of),
                "requests": int(np.median([trial.requests or 0 for trial in caught])) if caught else "",
                "at most": max((trial.requests or 0 for trial in caught), default=""),
                "samples at most": max((trial.samples or 0 for trial in caught), default=""),
                "unguarded": f"{np.mean([trial.unguarded for trial in of]):.4f}",
                "guarded": f"{np.mean([trial.realized for trial in of]):.4f}",
            }
        )
    return rows
