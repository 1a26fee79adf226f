"""Explores, chooses, calibrates and writes the learned caches of one model, as `learned/build.py` asks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.learned.accuracy import accuracy_of, write_accuracy
from latebind.learned.activations import Observed, apply_heads, observe
from latebind.learned.compose import Costs, Seen
from latebind.learned.composition import Composition
from latebind.learned.eight_bits import before_sure, eight_bit_lookup
from latebind.learned.exploration_folder import ExplorationFolder, Origin
from latebind.learned.explore import (
    FEWEST_ROWS,
    ExplorationResult,
    Explorer,
    Progress,
    TrainedLookup,
    all_cores,
    first_row,
    in_order,
    on_all_cores,
)
from latebind.learned.ilp import Variant
from latebind.learned.latency import seconds_before_sure
from latebind.learned.networks import BYTES
from latebind.learned.plan import Candidate, plan
from latebind.learned.promise import USUAL_TAIL, Promise
from latebind.learned.publish import Outcome, publish
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples, check_answers, check_classifier, split_worlds
from latebind.learned.selectors import without_idle_selectors
from latebind.program.load import load_program
from latebind.program.measure import profile_stages
from latebind.program.program import Program
from latebind.program.stored import read_model
from latebind.repository.directory import ModelDirectory

WORTH_A_CORE = 1.05  # factor in mean latency that lookups aside must gain, because they use another core
WORTH_A_TAIL = 1.25  # factor in mean latency that the usual tail may cost


@dataclass(frozen=True, slots=True)
class BuildSettings:
    """The promise, and how the program is run: threads and backend (None: the one built for)."""

    promise: Promise
    threads: int
    backend: str | None = None
    seed: int = 0
    progress: Progress | None = None


@dataclass(frozen=True, slots=True)
class ExplorationSettings:
    """What to explore: at most `most` boundaries (0: all), which kinds of networks, in which folder.

    `presentations` and `disk` are those of `Explorer`.
    """

    folder: Path
    most: int
    kinds: tuple[str, ...]
    presentations: int
    disk: int


@dataclass(slots=True)
class Builder:
    """Makes the learned caches of `program`; `wide` is the same program on all cores, for work that is not measured.

    `stages` are the seconds of each stage at batch 1.
    """

    program: Program
    promise: Promise
    seed: int
    progress: Progress
    wide: Program
    new_entry: bool = False  # the program has an empty first stage that its directory does not have yet
    stages: tuple[float, ...] = ()

    @classmethod
    def of(cls, directory: ModelDirectory, work: BuildSettings) -> Self:
        """Return a builder for the model as it is in the directory."""
        torch.set_num_threads(work.threads)
        program = load_program(directory, threads=work.threads, backend=work.backend)
        progress = work.progress or (lambda text, share: None)
        return cls(program, work.promise, work.seed, progress, on_all_cores(directory, program))

    @classmethod
    def without_caches(cls, directory: ModelDirectory, work: BuildSettings) -> Self:
        """Return a builder that trains all caches of a classifier anew; one may stand before the network.

        Raises `ConfigError` for a model that is no classifier.
        """
        builder = cls.of(directory, work)
        check_classifier(builder.program.spec)
        if not builder.program.entry and len(builder.program.spec.inputs) == 1:
            builder.program, builder.wide = builder.program.with_entry(), builder.wide.with_entry()
            builder.new_entry = True
        return builder

    def build(
        self, directory: ModelDirectory, fit: Samples, held_out: Samples, *, work: ExplorationSettings
    ) -> CacheReport:
        """Train lookups on `fit`, then choose and calibrate on `held_out`; without lookups if there cannot be any."""
        self.stages = self.stage_seconds(fit)
        reason = "" if self.promise.exact else self._too_few(fit, held_out)
        if reason or self.promise.exact or len(self.stages) < 2:
            return self._without_lookups(directory, held_out, reason)
        kinds = [kind for kind in work.kinds if kind != BYTES]
        planned = plan(self.program, self.stages, self._one_row(fit), most=work.most, kinds=kinds)
        if self.new_entry and not (planned and planned[0].stage == 0):
            planned = self._without_entry(planned)
        if not planned:
            return self._without_lookups(directory, held_out, "no lookup is small enough to pay behind any stage")
        origin = Origin.of(directory, fit, seed=self.seed, presentations=work.presentations)
        explorer = Explorer(
            program=self.program,
            wide=self.wide,
            names=read_model(directory).boundaries(entry=self.program.entry),
            kept=ExplorationFolder.open(work.folder, origin),
            seed=self.seed,
            presentations=work.presentations,
            disk=work.disk,
            progress=self.progress,
            beside=self.promise.may_be_aside(self.program.threads),
        )
        found = explorer.train(planned, fit)
        trained = list(found.trained)
        notes = _notes(found, len(fit))
        if BYTES in work.kinds:
            coarse, left_out = eight_bit_lookup(directory, explorer, fit, found)
            trained = before_sure(self.program, first_row(fit), [*trained, *coarse])
            if left_out:
                notes = (*notes, f"the network in eight bits is left out: {left_out}")
        report = self.calibrate(directory, in_order(trained), held_out)
        return replace(report, notes=notes)

    def _without_lookups(self, directory: ModelDirectory, held_out: Samples, reason: str) -> CacheReport:
        """Leave the model without lookups, but measure its accuracy all the same."""
        if held_out.labels is not None:
            directory = _with_accuracy(directory, self.observe([], held_out), held_out)
        return publish(directory, self._outcome([]), reason=reason)

    def _without_entry(self, planned: list[Candidate]) -> list[Candidate]:
        """Remove the empty first stage again, since no lookup is planned before the network."""
        self.program, self.wide = self.program.without_entry(), self.wide.without_entry()
        self.stages, self.new_entry = self.stages[1:], False
        return [replace(one, stage=one.stage - 1) for one in planned]

    def calibrate(self, directory: ModelDirectory, trained: Sequence[TrainedLookup], held_out: Samples) -> CacheReport:
        """Choose among the trained lookups and thresholds, verify the bound and write the result."""
        if self.promise.exact:
            return publish(directory, self._outcome(trained), new_entry=self.new_entry)
        self.progress("calibrating", 0.9)
        choose, verify = split_worlds(held_out, seed=self.seed)
        seen_by_all = self.observe(trained, held_out)
        directory = _with_accuracy(directory, seen_by_all, held_out)
        fewest = min(map(len, verify))
        if not self.promise.can_show(fewest):
            reason = self.promise.not_shown(fewest)
            return publish(directory, self._outcome(trained), new_entry=self.new_entry, reason=reason)
        if any(one.lessons is not None for one in trained):  # only after training: a recalibration drops no selectors
            trained, seen_by_all = self._without_idle_selectors(trained, seen_by_all, np.concatenate(choose))
        seen = seen_by_all.seen
        choosing, worlds = seen.take(np.concatenate(choose)), [seen.take(rows) for rows in verify]
        trained = self._in_line_or_aside(trained, choosing)
        composition = self._within_usual_tail(self.composition(trained), choosing)
        taken = composition.choose(choosing, worlds)
        self.progress("comparing", 0.95)
        others = composition.others(choosing, worlds) if len(trained) > 1 else []
        alone = composition.problem(choosing).variants
        outcome = replace(
            self._outcome(trained), worlds=tuple(worlds), trials=(taken, *others), observed=seen_by_all, alone=alone
        )
        reason = "" if taken.calibrated else self.promise.not_shown(fewest)
        return publish(directory, outcome, new_entry=self.new_entry, reason=reason)

    def _in_line_or_aside(self, trained: Sequence[TrainedLookup], choosing: Seen) -> list[TrainedLookup]:
        """Return the lookups as they will run: aside if that was measured and is demanded or faster, else in line."""
        in_line = [replace(one, beside=None) for one in trained]
        if self.promise.aside is False or any(one.beside is None for one in trained):
            return in_line
        if self.promise.aside is None:
            way = {aside: self.composition(lookups) for aside, lookups in ((False, in_line), (True, trained))}
            if way[True].expected(choosing) * WORTH_A_CORE > way[False].expected(choosing):
                return in_line
        return list(trained)

    def _within_usual_tail(self, composition: Composition, choosing: Seen) -> Composition:
        """Limit the tail to the usual one, if no tail is asked for and the mean does not suffer much."""
        if np.isfinite(self.promise.tail):
            return composition
        usual = replace(composition, promise=replace(self.promise, tail=USUAL_TAIL))
        within = usual.expected(choosing) <= WORTH_A_TAIL * composition.expected(choosing)
        return usual if within else composition

    def _without_idle_selectors(
        self, trained: Sequence[TrainedLookup], seen: Observed, rows: NDArray[np.int64]
    ) -> tuple[list[TrainedLookup], Observed]:
        heads = [one.files.head for one in trained]
        heads = without_idle_selectors(heads, seen, rows, fidelity=self.promise.fidelity)
        return [one.with_head(head) for one, head in zip(trained, heads, strict=True)], apply_heads(
            heads, seen.features, seen.answers
        )

    def observe(self, trained: Sequence[TrainedLookup], held_out: Samples) -> Observed:
        """Return what the lookups answer on the samples. Raises `ConfigError` where the network answers with NaN."""
        with all_cores(self.program.threads):
            seen = observe(self.wide, held_out, [(one.plan.stage, one.function) for one in trained])
        check_answers(seen.answers)
        return seen

    def composition(self, trained: Sequence[TrainedLookup]) -> Composition:
        """Return the problem of choosing among the lookups."""
        return Composition(tuple(map(_variant, trained)), self._costs(trained), self.stages, self.promise)

    def _outcome(self, trained: Sequence[TrainedLookup]) -> Outcome:
        return Outcome(self.promise, self.program.entry, self.stages, tuple(trained), self._costs(trained))

    def stage_seconds(self, samples: Samples) -> tuple[float, ...]:
        """Return the seconds of each stage at batch 1, measured now, under the same conditions as the lookups."""
        curves = profile_stages(self.program.stages, first_row(samples), (1,))
        return tuple(curve.at(1) for curve in curves)

    def _one_row(self, samples: Samples) -> dict[int, Tensor]:
        return {stage: self.program.run_through(stage, *first_row(samples)) for stage in range(len(self.stages) - 1)}

    def _costs(self, trained: Sequence[TrainedLookup]) -> Costs:
        ends = [one.plan.stage + 1 for one in trained]
        starts = [0, *ends]
        segments = tuple(
            sum(self.stages[start:end]) for start, end in zip(starts, [*ends, len(self.stages)], strict=True)
        )
        beside = tuple(one.slower for one in trained) if trained and trained[0].beside is not None else None
        sure = tuple(place for place, one in enumerate(trained) if one.files.head.sure)
        before = None if beside is not None else seconds_before_sure([(one.curve, one.before_sure) for one in trained])
        return Costs(segments, tuple(one.known.at(1) for one in trained), beside, sure, before)

    def _too_few(self, fit: Samples, held_out: Samples) -> str:
        if len(fit) < FEWEST_ROWS:
            return f"{len(fit)} rows to fit are too few to train lookups: give {FEWEST_ROWS} or more (half of a file)"
        fewest = min(map(len, split_worlds(held_out, seed=self.seed)[1]), default=0)
        return "" if self.promise.can_show(fewest) else self.promise.not_shown(fewest)


def _with_accuracy(directory: ModelDirectory, seen: Observed, held_out: Samples) -> ModelDirectory:
    """Write the network's accuracy into the directory, if the samples have labels."""
    if held_out.labels is None:
        return directory
    return write_accuracy(directory, accuracy_of(seen.answers, held_out.labels))


def _notes(found: ExplorationResult, rows: int) -> tuple[str, ...]:
    """Return notes on networks that were reused, and on boundaries that learned from fewer rows than given."""
    notes = []
    if found.reused:
        notes.append(f"{found.reused} of {len(found.trained)} networks taken from an earlier run")
    for stage, learned in found.limited.items():
        notes.append(f"behind stage {stage} the disk had room for {learned} rows to learn from, of {rows} to fit")
    return tuple(notes)


def _variant(one: TrainedLookup) -> Variant:
    """Return the figures known beforehand; composition takes hit rate and accuracy from the samples."""
    return Variant(one.plan.stage, one.plan.kind, 0.0, 1.0, one.known.at(1), one.bytes)
