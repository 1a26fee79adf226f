"""Building learned caches for a model directory: plan, train, choose, calibrate, write (GATI, sections 3 and 4)."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.accuracy import accuracy_of, write_accuracy
from latebind.learned.activations import Observed, observe, observed
from latebind.learned.compose import Costs, Seen
from latebind.learned.composition import Composition
from latebind.learned.explore import (
    FEWEST_ROWS,
    Explored,
    Explorer,
    Progress,
    Trained,
    all_cores,
    first_row,
    in_order,
    on_all_cores,
)
from latebind.learned.explored import Exploration, Origin
from latebind.learned.ilp import Variant
from latebind.learned.latency import latency_beside, latency_in_place, seconds_before_sure
from latebind.learned.lookup import load_functions
from latebind.learned.narrow import before_sure, in_bytes
from latebind.learned.networks import BYTES, check_kinds
from latebind.learned.plan import Candidate, plan
from latebind.learned.promise import ANSWERS, CACHE_BYTES, USUAL_TAIL, Promise
from latebind.learned.publish import Outcome, publish
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples, check_classifier, checked, split_worlds
from latebind.learned.selectors import without_idle_selectors
from latebind.learned.stored import read_caches, read_lookup
from latebind.program.load import load_program
from latebind.program.measure import profile_stages
from latebind.program.program import Program
from latebind.program.stored import read_model
from latebind.repository.directory import ModelDirectory

CANDIDATES = 3
PRESENTATIONS = 300_000  # rows that each predictor sees, repetitions counted
DISK = 20 << 30
WORTH_A_CORE = 1.05  # times faster in the mean lookups must be aside: they take time from another core
WORTH_A_TAIL = 1.25  # times slower in the mean lookups may be that keep the usual tail


def build_caches(
    directory: ModelDirectory,
    fit: Samples,
    calibrate: Samples,
    *,
    fidelity: float = 0.97,
    confidence: float = 0.95,
    threads: int = 1,
    seed: int = 0,
    candidates: int = CANDIDATES,
    kinds: Sequence[str] = (),
    presentations: int = PRESENTATIONS,
    disk: int = DISK,
    explored: Path | None = None,
    cache_bytes: int = CACHE_BYTES,
    tail: float | None = None,
    aside: bool | None = None,
    answers: int | None = ANSWERS,
    progress: Progress | None = None,
) -> CacheReport:
    """Train lookups behind stages, choose among them and write them into the model directory.

    `fidelity` is the share of the next `answers` that must equal the base model's, on samples like `calibrate` and with
    `confidence` (None: of all that there could be, see `learned.bounds`); 1.0 means no lookups at all. `fit` and
    `calibrate` must have no sample in common, and rows of `fit` that show the same thing must be neighbours, because
    its last part is kept from the predictors. Activations take at most `disk` bytes at a time, the weights of all
    lookups in use `cache_bytes`. A request that none of them answers takes at most `tail` times the base model's
    latency; if none is given, `USUAL_TAIL` times, unless lookups without that limit are `WORTH_A_TAIL` times faster in
    the mean. Lookups run `aside`, on a core of their own
    while the network goes on, or in line; by default that is measured.

    There are up to `candidates` boundaries (0: all). At each, the most able network that pays is trained, or all of
    `kinds` that may pay (`networks.make_predictor`); then which are used is composed (GATI, section 4), and the report
    compares. With a folder `explored`, networks are kept there as soon as they are trained, and what an earlier call
    has left there of the same model, rows, seed and presentations is not trained again.

    Raises `ConfigError` for settings or samples without sense and for models that are not classifiers with one output
    `(B, classes) float32`, `TrainingStopped` if a training dies. With too few samples for the target there are fewer
    exits or none, and a warning says so.
    """
    promise = Promise(fidelity, confidence, cache_bytes, inf if tail is None else tail, aside, answers)
    if candidates < 0 or presentations < 1 or disk < 1:
        raise ConfigError("presentations and disk must be 1 or more, candidates 1 or more or 0 for all boundaries")
    torch.set_num_threads(threads)
    program = load_program(directory, threads=threads)
    check_classifier(program.spec)
    new_entry = not program.entry and len(program.spec.inputs) == 1
    wide = on_all_cores(directory, program)
    if new_entry:
        program, wide = program.with_entry(), wide.with_entry()
    check_kinds(kinds)
    builder = _Builder(program, promise, seed, progress or (lambda text, share: None), wide, new_entry)
    ready = [checked(samples, program.spec) for samples in (fit, calibrate)]
    with nullcontext(explored) if explored else TemporaryDirectory(prefix="latebind-") as folder:
        work = Exploring(Path(folder), candidates, tuple(kinds), presentations, disk)
        found = builder.build(directory, *ready, work=work)
    if found.warning:
        warnings.warn(found.warning, stacklevel=2)
    return found


def recalibrate(
    directory: ModelDirectory,
    held_out: Samples,
    *,
    fidelity: float = 0.97,
    confidence: float = 0.95,
    threads: int = 1,
    backend: str | None = None,
    seed: int = 0,
    cache_bytes: int = CACHE_BYTES,
    tail: float | None = None,
    aside: bool | None = None,
    answers: int | None = ANSWERS,
    progress: Progress | None = None,
) -> CacheReport:
    """Choose the thresholds of the learned caches in a model directory anew on `held_out`, without training.

    `backend` is the one that will serve, if not the one built for; `tail` is that of the build unless it is given.
    Other settings and errors are those of `build_caches`; a model without learned caches raises `ConfigError`.
    """
    caches = read_caches(directory)
    if tail is None and caches is not None:
        tail = caches.tail
    promise = Promise(fidelity, confidence, cache_bytes, inf if tail is None else tail, aside, answers)
    builder, trained, rows = _stored_caches(directory, held_out, promise, threads, backend, seed, progress)
    return builder.calibrate(directory, trained, rows)


def observe_caches(
    directory: ModelDirectory,
    held_out: Samples,
    promise: Promise,
    *,
    threads: int = 1,
    backend: str | None = None,
) -> tuple[Seen, Composition]:
    """Return what all learned caches of a model directory make of `held_out`, and what can be composed of them.

    To try calibrations on parts of the samples; nothing is written. Lookups are asked as they were when built. Errors
    are those of `recalibrate`.
    """
    caches = read_caches(directory)
    promise = replace(promise, aside=caches is not None and caches.aside)
    builder, trained, rows = _stored_caches(directory, held_out, promise, threads, backend, 0, None)
    return builder.observe(trained, rows).seen, builder.composition(trained)


def _stored_caches(
    directory: ModelDirectory,
    held_out: Samples,
    promise: Promise,
    threads: int,
    backend: str | None,
    seed: int,
    progress: Progress | None,
) -> "tuple[_Builder, list[Trained], Samples]":
    """Load what was trained before and measure it here."""
    torch.set_num_threads(threads)
    caches = read_caches(directory)
    if caches is None or not caches.every:
        raise ConfigError(f"{directory.path} has no learned caches to calibrate: build them with data first")
    program = load_program(directory, threads=threads, backend=backend)
    wide = on_all_cores(directory, program)
    builder = _Builder(program, promise, seed, progress or (lambda text, share: None), wide)
    rows = checked(held_out, program.spec)
    builder.stages = builder.stage_seconds(rows)
    trained = []
    functions = load_functions(directory, caches.every, backend=program.backend, threads=threads)
    for one in caches.every:
        place = (program, first_row(rows), one.stage, functions[one.name])
        curve = latency_in_place(*place)
        candidate = Candidate(one.stage, one.kind, curve.at(1))
        beside = latency_beside(*place) if promise.may_be_aside(threads) else None
        files = read_lookup(directory, one.name)
        trained.append(Trained(candidate, files, functions[one.name], curve, beside=beside))
    return builder, in_order(before_sure(program, first_row(rows), trained)), rows


@dataclass(frozen=True, slots=True)
class Exploring:
    """What to explore: at most so many boundaries (0: all), kinds of networks, in which folder, within what."""

    folder: Path
    most: int
    kinds: tuple[str, ...]
    presentations: int
    disk: int


@dataclass(slots=True)
class _Builder:
    program: Program
    promise: Promise
    seed: int
    progress: Progress
    wide: Program  # the same, but on all cores: for work that is not measured
    new_entry: bool = False  # the program has an empty first stage that its directory does not have yet
    stages: tuple[float, ...] = ()

    def build(
        self,
        directory: ModelDirectory,
        fit: Samples,
        held_out: Samples,
        *,
        work: Exploring,
    ) -> CacheReport:
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
            kept=Exploration.open(work.folder, origin),
            seed=self.seed,
            presentations=work.presentations,
            disk=work.disk,
            progress=self.progress,
            beside=self.promise.may_be_aside(self.program.threads),
        )
        found = explorer.train(planned, fit)
        trained = list(found.trained)
        if BYTES in work.kinds:
            trained = before_sure(self.program, first_row(fit), [*trained, *in_bytes(directory, explorer, fit, found)])
        report = self.calibrate(directory, in_order(trained), held_out)
        return replace(report, notes=_notes(found, len(fit)))

    def _without_lookups(self, directory: ModelDirectory, held_out: Samples, reason: str) -> CacheReport:
        """The model stays as it is, but how often it is right is found out all the same."""
        if held_out.labels is not None:
            directory = _with_accuracy(directory, self.observe([], held_out), held_out)
        return publish(directory, self._outcome([]), reason=reason)

    def _without_entry(self, planned: list[Candidate]) -> list[Candidate]:
        """Nothing will stand before the network: it keeps the stages that it has."""
        self.program, self.wide = self.program.without_entry(), self.wide.without_entry()
        self.stages, self.new_entry = self.stages[1:], False
        return [replace(one, stage=one.stage - 1) for one in planned]

    def calibrate(self, directory: ModelDirectory, trained: Sequence[Trained], held_out: Samples) -> CacheReport:
        """Choose among the trained lookups and their thresholds, show the bound, write what holds."""
        if self.promise.exact:
            return publish(directory, self._outcome(trained), new_entry=self.new_entry)
        self.progress("calibrating", 0.9)
        choose, verify = split_worlds(held_out, seed=self.seed)
        seen_by_all = self.observe(trained, held_out)
        directory = _with_accuracy(directory, seen_by_all, held_out)
        if any(one.lessons is not None for one in trained):  # not when calibrated again: nothing is lost
            trained, seen_by_all = self._without_idle_selectors(trained, seen_by_all, np.concatenate(choose))
        seen = seen_by_all.seen
        choosing, worlds = seen.take(np.concatenate(choose)), [seen.take(rows) for rows in verify]
        trained = self._asked(trained, choosing)
        composition = self._within_usual_tail(self.composition(trained), choosing)
        taken = composition.choose(choosing, worlds)
        self.progress("comparing", 0.95)
        others = composition.others(choosing, worlds) if len(trained) > 1 else []
        alone = composition.problem(choosing).variants
        outcome = replace(
            self._outcome(trained), worlds=tuple(worlds), trials=(taken, *others), observed=seen_by_all, alone=alone
        )
        reason = "" if taken.calibrated else self.promise.not_shown(min(map(len, verify)))
        return publish(directory, outcome, new_entry=self.new_entry, reason=reason)

    def _asked(self, trained: Sequence[Trained], choosing: Seen) -> list[Trained]:
        """Return the lookups as they are asked: in line, or aside if that was measured and is demanded or faster."""
        in_line = [replace(one, beside=None) for one in trained]
        if self.promise.aside is False or any(one.beside is None for one in trained):
            return in_line
        if self.promise.aside is None:
            way = {aside: self.composition(lookups) for aside, lookups in ((False, in_line), (True, trained))}
            if way[True].expected(choosing) * WORTH_A_CORE > way[False].expected(choosing):
                return in_line
        return list(trained)

    def _within_usual_tail(self, composition: Composition, choosing: Seen) -> Composition:
        """Keep the usual tail where none is asked for and the mean does not suffer much."""
        if np.isfinite(self.promise.tail):
            return composition
        usual = replace(composition, promise=replace(self.promise, tail=USUAL_TAIL))
        within = usual.expected(choosing) <= WORTH_A_TAIL * composition.expected(choosing)
        return usual if within else composition

    def _without_idle_selectors(
        self, trained: Sequence[Trained], seen: Observed, rows: NDArray[np.int64]
    ) -> tuple[list[Trained], Observed]:
        heads = [one.files.head for one in trained]
        heads = without_idle_selectors(heads, seen, rows, fidelity=self.promise.fidelity)
        return [one.with_head(head) for one, head in zip(trained, heads, strict=True)], observed(
            heads, seen.features, seen.answers
        )

    def observe(self, trained: Sequence[Trained], held_out: Samples) -> Observed:
        """Return what the lookups make of the samples."""
        with all_cores(self.program.threads):
            return observe(self.wide, held_out, [(one.plan.stage, one.function) for one in trained])

    def composition(self, trained: Sequence[Trained]) -> Composition:
        """Return what can be composed of the lookups."""
        return Composition(tuple(map(_variant, trained)), self._costs(trained), self.stages, self.promise)

    def _outcome(self, trained: Sequence[Trained]) -> Outcome:
        return Outcome(self.promise, self.program.entry, self.stages, tuple(trained), self._costs(trained))

    def stage_seconds(self, samples: Samples) -> tuple[float, ...]:
        """Measured here and now, so that stages and lookups are measured alike."""
        curves = profile_stages(self.program.stages, first_row(samples), (1,))
        return tuple(curve.at(1) for curve in curves)

    def _one_row(self, samples: Samples) -> dict[int, Tensor]:
        return {stage: self.program.run_through(stage, *first_row(samples)) for stage in range(len(self.stages) - 1)}

    def _costs(self, trained: Sequence[Trained]) -> Costs:
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
    """Have the directory remember how often the network is right, where labels tell."""
    if held_out.labels is None:
        return directory
    return write_accuracy(directory, accuracy_of(seen.answers, held_out.labels))


def _notes(found: Explored, rows: int) -> tuple[str, ...]:
    """Say what was not trained now, and what was trained on less than all rows."""
    notes = []
    if found.reused:
        notes.append(f"{found.reused} of {len(found.trained)} networks taken from an earlier run")
    for stage, learned in found.limited.items():
        notes.append(f"behind stage {stage} the disk had room for {learned} rows to learn from, of {rows} to fit")
    return tuple(notes)


def _variant(one: Trained) -> Variant:
    """What composition knows beforehand; hit rate and accuracy come from the samples."""
    return Variant(one.plan.stage, one.plan.kind, 0.0, 1.0, one.known.at(1), one.bytes)
