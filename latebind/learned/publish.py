"""What came of building, into the model directory: lookups in use and spare ones, and the report of all tried."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from latebind.learned.accuracy import read_accuracy
from latebind.learned.activations import Observed
from latebind.learned.calibrate import Calibrated
from latebind.learned.compose import Costs, Seen, send
from latebind.learned.composition import Trial
from latebind.learned.explore import Trained
from latebind.learned.ilp import Variant
from latebind.learned.promise import Promise
from latebind.learned.report import CacheReport, ToldTrial, Tried
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

HELD_OUT_ROWS = 10_000
WIDEST_KEPT = 4_096  # features of a lookup that can be adapted: as many as large networks end with


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was trained, in the order in which requests meet it, seen and chosen.

    `entry` says that stage 0 is empty, `stages` are seconds.

    `worlds` are what the lookups, in the order of `trained`, made of the samples that show the bound; of `trials` the
    first is taken. Without trials nothing is used. `observed` is what all held-out rows looked like to them, `alone`
    the figures of each by itself on the samples that choose.
    """

    promise: Promise
    entry: bool
    stages: tuple[float, ...]
    trained: tuple[Trained, ...]
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
        """Name the place behind a stage."""
        return "before the network" if self.entry and stage == 0 else f"behind stage {stage}"


def publish(directory: ModelDirectory, outcome: Outcome, *, new_entry: bool = False, reason: str = "") -> CacheReport:
    """Write the lookups and return the report. `new_entry`: the directory does not have the empty stage yet."""
    found = outcome.calibrated
    lookups = _in_use(outcome, found) if found else ()
    if found and not lookups:
        found, reason = None, "no lookup pays at this target: the network runs to its end"
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


def _stored(
    outcome: Outcome, found: Calibrated | None, lookups: tuple[StoredLookup, ...], kept: Sequence[Trained]
) -> StoredCaches:
    """Return what the model directory is to say of the lookups in use, and of those that are kept beside."""
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
        trials=tuple(_told(outcome, trial) for trial in outcome.trials),
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


def _kept(outcome: Outcome, lookups: tuple[StoredLookup, ...]) -> list[Trained]:
    """Return the lookups in use, beside them the quickest, and at other boundaries the one that is right most often.

    The quickest are for adaptation, the others for another calibration, which keeps all that there are.
    """
    if all(one.lessons is None for one in outcome.trained):  # they were trained before
        return list(outcome.trained)
    names, used = {lookup.name for lookup in lookups}, {lookup.stage for lookup in lookups}
    right = [sum(float(seen.right[k].mean()) for seen in outcome.worlds) for k in range(len(outcome.trained))]
    for stage in {one.plan.stage for one in outcome.trained}:
        here = [k for k, one in enumerate(outcome.trained) if one.plan.stage == stage]
        chosen = here[0] if stage in used else max(here, key=lambda k: right[k])
        names.add(outcome.trained[chosen].plan.name)
    return [one for one in outcome.trained if one.plan.name in names]


def _held_out(outcome: Outcome, kept: Sequence[Trained]) -> Rows | None:
    """Return held-out rows for adaptation, as the lookups that are kept see them."""
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


def _lessons(directory: ModelDirectory, kept: Sequence[Trained]) -> Rows | None:
    """Return the rows to train new heads with, as the lookups that are kept see them: of this training or the last."""
    each = [one.lessons for one in kept if one.lessons is not None]
    if not each:
        return read_rows(directory, LESSONS) if kept else None
    narrow = {name: rows for one in each for name, rows in one.features.items() if rows.shape[1] <= WIDEST_KEPT}
    return Rows(narrow, each[0].answers, each[0].classes)


def _tried(outcome: Outcome, k: int) -> Tried:
    one = outcome.trained[k]
    fidelity = min(float(seen.right[k].mean()) for seen in outcome.worlds)
    where = outcome.where(one.plan.stage)
    hits, accuracy = outcome.alone[k].hit_rate, outcome.alone[k].accuracy
    return Tried(where, one.plan.stage, one.plan.kind, fidelity, one.known.at(1), one.bytes, hits, accuracy)


def _told(outcome: Outcome, trial: Trial) -> ToldTrial:
    plans = [outcome.trained[k].plan for k in trial.choice]
    names = tuple(f"{outcome.where(plan.stage)}: {plan.kind}" for plan in plans)
    return ToldTrial(trial.rule, names, trial.calibrated.seconds if trial.calibrated else sum(outcome.stages))
