"""Checks the fidelity promise: calibrates on random halves of samples, tests each result on the unseen other half."""

from dataclasses import dataclass

import numpy as np

from latebind.bench.subject import Subject
from latebind.domain.errors import ConfigError
from latebind.learned.build import observe_caches
from latebind.learned.compose import Composition, Seen, send
from latebind.learned.promise import Promise
from latebind.learned.samples import CHOOSE_SHARE
from latebind.repository.directory import ModelDirectory


@dataclass(frozen=True, slots=True)
class Split:
    """One calibration: what it showed on its half, and what the other half says. `gain` is in expected latency."""

    shown: float
    lower: float
    realised: float
    left_early: float
    gain: float


@dataclass(frozen=True, slots=True)
class CalibrationReport:
    """All splits. `broken` counts those whose realised fidelity is under the target."""

    promise: Promise
    rows: int
    splits: tuple[Split, ...]

    @property
    def broken(self) -> int:
        """How many calibrations did not keep the promise on unseen samples."""
        return sum(split.realised < self.promise.fidelity for split in self.splits)


def run(
    subject: Subject,
    *,
    promise: Promise,
    splits: int = 20,
    backend: str | None = None,
    seed: int = 0,
) -> CalibrationReport:
    """Calibrate the model's learned caches on `splits` random halves of the rows; nothing is written."""
    if splits < 1 or promise.exact:
        raise ConfigError("give one split or more, and a fidelity under 1")
    directory = ModelDirectory.open(subject.path)
    seen, composition = observe_caches(directory, subject.samples(), promise, backend=backend)
    found = tuple(_split(seen, composition, np.random.default_rng([seed, number])) for number in range(splits))
    return CalibrationReport(promise, seen.right.shape[1], found)


def _split(seen: Seen, composition: Composition, random: np.random.Generator) -> Split:
    order = random.permutation(seen.right.shape[1])
    half, unseen = np.array_split(order, 2)
    cut = round(CHOOSE_SHARE * len(half))
    found = composition.choose(seen.take(half[:cut]), [seen.take(half[cut:])])
    if found is None:
        return Split(1.0, 1.0, 1.0, 0.0, 1.0)
    result = send(found.thresholds, seen.take(unseen), composition.costs)
    return Split(
        shown=found.fidelity,
        lower=found.lower,
        realised=1.0 - float(result.wrong.mean()),
        left_early=float((result.left_at < len(composition.variants)).mean()),
        gain=composition.costs.whole / float(result.seconds.mean()),
    )
