"""Writes the outcome of a build into the model directory, lookups in use and spare ones, and makes the report."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latebind.learned.accuracy import read_accuracy
from latebind.learned.activations import Observed
from latebind.learned.calibrate import Calibrated
from latebind.learned.compose import Costs, Seen, send
from latebind.learned.composition import Trial
from latebind.learned.explore import TrainedLookup
from latebind.learned.ilp import Variant
from latebind.learned.promise import Promise
from latebind.learned.report import CacheReport, TrialReport, TriedLookup
from latebind.learned.stored import (
    FORMAT,
    LESSONS,
    Rows,
    SpareLookup,
    StoredCaches,
    StoredLookup,
    read_rows,
    write_caches,
)
from latebind.repository.directory import ModelDirectory

LITTLE = 1e-3  # seconds: below, asking a lookup costs about what it saves
HELD_OUT_ROWS = 10_000  # kept for adaptation at most
WIDEST_KEPT = 4_096  # most features of a lookup that can be adapted: as many as large networks end with


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a build: lookups in the order in which requests meet them, and what was chosen among them.

    * `entry`: whether stage 0 is empty. `stages`: seconds of each stage.
    * `worlds`: what the lookups, in the order of `trained`, answered on the samples that show the bound.
    * `trials`: the choices that were calibrated; the first is used. Without trials no lookup is used.
    * `observed`: what the lookups answered on all held-out rows, with their features.
    * `alone`: the figures of each lookup by itself on the samples that choose.
    """

    promise: Promise
    entry: bool
    stages: tuple[float, ...]
    trained: tuple[TrainedLookup, ...]
    costs: Costs
    worlds: tuple[Seen, ...] = ()
    trials: tuple[Trial, ...] = ()
    observed: Observed | None = None
    alone: tuple[Variant, ...] = ()

    @property
    def calibrated(self) -> Calibrated | None:
        """The thresholds to use, if any hold."""
        return self.trials[0].calibrated if self.trials else None

    def where(self, stage: int) -> str:
        """Return words for the boundary behind a stage."""
        return "before the network" if self.entry and stage == 0 else f"behind stage {stage}"


def publish(directory: ModelDirectory, outcome: Outcome, *, new_entry: bool = False, reason: str = "") -> CacheReport:
    """Write the lookups and return the report.

    `new_entry` says that the directory does not have the empty first stage yet. `reason` says why there are no lookups.
    """
    found = outcome.calibrated
    lookups = _in_use(outcome, found) if found else ()
    if found and not lookups:
        found, reason = None, nothing_pays(sum(outcome.stages))
    kept = _kept(outcome, lookups)
    caches = _stored(outcome, found, lookups, kept)
    after = write_caches(
        directory,
        caches,
        {one.plan.name: one.files for one in kept},
        held_out=_held_out(outcome, kept),
        lessons=_lessons(directory, kept),
        new_entry=new_entry and bool(kept),
    )
    return _report(after, outcome, found, caches, reason)


def nothing_pays(seconds: float) -> str:
    """Say that no lookup is used for a network that takes so many seconds, and what may change that."""
    short = f"; in {seconds * 1e3:.2f} ms there is little to save" if seconds < LITTLE else ""
    return (
        f"no lookup pays at this target: the network runs to its end{short}. A lower fidelity or more rows like the "
        "traffic may change that: docs/choosing.md"
    )


def _stored(
    outcome: Outcome, found: Calibrated | None, lookups: tuple[StoredLookup, ...], kept: Sequence[TrainedLookup]
) -> StoredCaches:
    """Return the entry of the model directory: the lookups in use, and the spare ones that are kept."""
    promise, used = outcome.promise, {lookup.name for lookup in lookups}
    return StoredCaches(
        format=FORMAT,
        target=promise.fidelity,
        confidence=promise.confidence,
        fidelity=found.fidelity if found else 1.0,
        lower=found.lower if found else 1.0,
        calibrated_on=sum(seen.right.shape[1] for seen in outcome.worlds),
        lookups=lookups,
        spare=tuple(
            SpareLookup(one.plan.stage, one.plan.kind, one.bytes, one.known, one.slower, one.before_sure)
            for one in kept
            if one.plan.name not in used
        ),
        tail=promise.tail if np.isfinite(promise.tail) else None,
        aside=outcome.costs.beside is not None,
        answers=promise.answers,
    )


def _report(
    directory: ModelDirectory, outcome: Outcome, found: Calibrated | None, caches: StoredCaches, warning: str
) -> CacheReport:
    whole = sum(outcome.stages)
    return CacheReport(
        directory=directory,
        target=caches.target,
        confidence=caches.confidence,
        tried=tuple(_tried(outcome, k) for k in range(len(outcome.trained))) if outcome.worlds else (),
        lookups=caches.lookups,
        fidelity=caches.fidelity,
        lower=caches.lower,
        calibrated_on=caches.calibrated_on,
        seconds_without=whole,
        seconds_with=found.seconds if found else whole,
        warning=warning,
        aside=caches.aside,
        answers=caches.answers,
        right=read_accuracy(directory),
        trials=tuple(_trial_report(outcome, trial) for trial in outcome.trials),
    )


def _in_use(outcome: Outcome, found: Calibrated) -> tuple[StoredLookup, ...]:
    results = [send(found.thresholds, seen, outcome.costs) for seen in outcome.worlds]
    left_at = np.concatenate([result.left_at for result in results])
    wrong = np.concatenate([result.wrong for result in results])
    stored = []
    for k, one in enumerate(outcome.trained):
        hits = left_at == k
        if np.isfinite(found.thresholds[k]) and hits.any():
            stored.append(
                StoredLookup(
                    stage=one.plan.stage,
                    kind=one.plan.kind,
                    threshold=float(found.thresholds[k]),
                    hit_rate=float(hits.mean()),
                    fidelity=1.0 - float(wrong[hits].mean()),
                    bytes=one.bytes,
                    seconds=one.known,
                    slower=one.slower,
                    before_sure=one.before_sure,
                )
            )
    return tuple(stored)


def _kept(outcome: Outcome, lookups: tuple[StoredLookup, ...]) -> list[TrainedLookup]:
    """Return the lookups to keep: those in use, and one spare lookup at each boundary.

    At a boundary in use the spare one is the quickest, for adaptation. At another it is the one that is right most
    often, for a later calibration. A calibration itself keeps all that there are.
    """
    if all(one.lessons is None for one in outcome.trained):  # a recalibration: nothing was trained now
        return list(outcome.trained)
    names, used = {lookup.name for lookup in lookups}, {lookup.stage for lookup in lookups}
    right = [sum(float(seen.right[k].mean()) for seen in outcome.worlds) for k in range(len(outcome.trained))]
    for stage in {one.plan.stage for one in outcome.trained}:
        here = [k for k, one in enumerate(outcome.trained) if one.plan.stage == stage]
        chosen = here[0] if stage in used else max(here, key=lambda k: right[k])
        names.add(outcome.trained[chosen].plan.name)
    return [one for one in outcome.trained if one.plan.name in names]


def _held_out(outcome: Outcome, kept: Sequence[TrainedLookup]) -> Rows | None:
    """Return held-out rows for adaptation: the features of the lookups that are kept."""
    if outcome.observed is None:
        return None
    rows = slice(0, HELD_OUT_ROWS)
    answers, names = outcome.observed.answers[rows], {one.plan.name for one in kept}
    features = {
        one.plan.name: seen[rows].bfloat16()
        for one, seen in zip(outcome.trained, outcome.observed.features, strict=True)
        if one.plan.name in names and seen.shape[1] <= WIDEST_KEPT
    }
    return Rows(features, answers.bfloat16(), answers.argmax(dim=1))


def _lessons(directory: ModelDirectory, kept: Sequence[TrainedLookup]) -> Rows | None:
    """Return the rows to train new heads with: the features of the lookups kept, of this training or the last one."""
    each = [one.lessons for one in kept if one.lessons is not None]
    if not each:
        return read_rows(directory, LESSONS) if kept else None
    narrow = {name: rows for one in each for name, rows in one.features.items() if rows.shape[1] <= WIDEST_KEPT}
    return Rows(narrow, each[0].answers, each[0].classes)


def _tried(outcome: Outcome, k: int) -> TriedLookup:
    one = outcome.trained[k]
    fidelity = min(float(seen.right[k].mean()) for seen in outcome.worlds)
    where = outcome.where(one.plan.stage)
    hits, accuracy = outcome.alone[k].hit_rate, outcome.alone[k].accuracy
    return TriedLookup(where, one.plan.stage, one.plan.kind, fidelity, one.known.at(1), one.bytes, hits, accuracy)


def _trial_report(outcome: Outcome, trial: Trial) -> TrialReport:
    plans = [outcome.trained[k].plan for k in trial.choice]
    names = tuple(f"{outcome.where(plan.stage)}: {plan.kind}" for plan in plans)
    return TrialReport(trial.rule, names, trial.calibrated.seconds if trial.calibrated else sum(outcome.stages))
