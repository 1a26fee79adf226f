"""Builds learned caches for a model directory: explore, choose, calibrate, write (GATI, sections 3 and 4)."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.domain.costs import Grid
from latebind.domain.defaults import CANDIDATES, PRESENTATIONS
from latebind.domain.errors import ConfigError
from latebind.learned.activations import Observed, apply_heads, observe
from latebind.learned.compose import Composition, Costs, Seen, Variant, hits_alone, over_lengths
from latebind.learned.exploration_folder import ExplorationFolder, Origin
from latebind.learned.explore import (
    FEWEST_ROWS,
    ExplorationResult,
    Explorer,
    Progress,
    TrainedLookup,
    all_cores,
    in_order,
    on_all_cores,
    some_rows,
)
from latebind.learned.head import Head, HeadFunction
from latebind.learned.lookup import load_functions
from latebind.learned.metadata import (
    FORMAT,
    SpareLookup,
    StoredCaches,
    read_accuracy,
    read_caches,
    write_accuracy,
)
from latebind.learned.networks import BYTES, check_kinds
from latebind.learned.outcome import Outcome, lessons
from latebind.learned.plan import plan
from latebind.learned.promise import ANSWERS, CACHE_BYTES, USUAL_TAIL, Promise
from latebind.learned.reading import readings
from latebind.learned.report import CacheReport, TriedLookup
from latebind.learned.samples import (
    Samples,
    check_answers,
    check_classifier,
    checked,
    doubt,
    split_worlds,
)
from latebind.learned.stored import accuracy_of, read_lookup, write_caches
from latebind.program.backends import exact_beside
from latebind.program.load import load_program
from latebind.program.measure import profile_stages
from latebind.program.metadata import read_model
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory

# Fidelities of the operating curve, and the target's. They share the confidence, so more of them are less sure.
CURVE = (0.999, 0.995, 0.99, 0.98, 0.97, 0.95, 0.9)
WORTH_A_CORE = 1.05  # factor in mean latency that lookups aside must gain, because they use another core
WORTH_A_TAIL = 1.25  # factor in mean latency that the usual tail may cost
LITTLE = 1e-3  # seconds: below, asking a lookup costs about what it saves
MEASURED = (0.0, 0.25, 0.5, 0.75, 1.0)  # where in the order of lengths the rows are on which stages are measured


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
    explored: Path | None = None,
    cache_bytes: int = CACHE_BYTES,
    answers: int | None = ANSWERS,
    task: str = "",
    progress: Progress | None = None,
) -> CacheReport:
    """Train lookups after stages, choose among them and write them into the model directory.

    `fidelity` is the share of the next `answers` that must equal the base model's, on samples like `calibrate` and with
    `confidence` (None: of all possible answers, see `learned.promise`); 1.0 means no lookups at all. `fit` and
    `calibrate` must have no sample in common. Rows of `fit` that show the same thing must be neighbors, because its
    last part is held out from the predictors.

    The weights of all lookups in use take at most `cache_bytes`, not counting the network in eight bits. A request that
    no lookup answers takes at most `USUAL_TAIL` times the base model's latency, unless lookups without that limit are
    more than 1.25 times faster in the mean. Lookups run aside, on a core of their own while the network goes on, or in
    line, whichever is measured to be faster.

    Lookups are tried at up to `candidates` boundaries (0: all). At each, the most able network that pays is trained, or
    all of `kinds` that may pay (`networks.make_predictor`). Composition then chooses which of them are used (GATI,
    section 4). With a folder `explored`, networks are kept there as soon as they are trained. Those that an earlier
    call left there for the same model, rows, seed and presentations are reused.

    Raises `ConfigError` for invalid settings or samples (such as NaN), for models that are not classifiers with one
    output `(B, classes) float32`, and if nothing shows that the model is a classifier: neither `task` nor labels nor a
    softmax at its end. With too few samples for the target there are fewer exits or none, and a warning.
    """
    promise = Promise(fidelity, confidence, cache_bytes, answers=answers)
    if candidates < 0 or presentations < 1:
        raise ConfigError("presentations must be 1 or more, candidates 1 or more or 0 for all boundaries")
    check_kinds(kinds)
    if unknown := doubt(directory, (fit, calibrate), task):
        raise ConfigError(unknown)
    builder = Builder.of(directory, promise, threads=threads, seed=seed, progress=progress)
    check_classifier(builder.program.spec)
    ready = [checked(samples, builder.program.spec) for samples in (fit, calibrate)]
    with nullcontext(explored) if explored else TemporaryDirectory(prefix="latebind-") as folder:
        found = builder.build(
            directory, *ready, folder=Path(folder), most=candidates, kinds=kinds, presentations=presentations
        )
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
    aside: bool | None = None,
    answers: int | None = ANSWERS,
    progress: Progress | None = None,
) -> CacheReport:
    """Choose lookups and thresholds of a model directory again on `held_out`, without training.

    `backend` is the one that will serve, if it is not the one built for; lookups run `aside` or in line (None:
    whichever is measured to be faster). Other settings and errors are those of `build_caches`; a model without learned
    caches raises `ConfigError`.
    """
    caches = read_caches(directory)
    tail = inf if caches is None or caches.tail is None else caches.tail  # that its build asked for
    promise = Promise(fidelity, confidence, cache_bytes, tail, aside, answers)
    builder = Builder.of(directory, promise, threads=threads, backend=backend, seed=seed, progress=progress)
    trained, rows = builder.stored_caches(directory, held_out)
    return builder.calibrate(directory, trained, rows)


@dataclass(slots=True)
class Builder:
    """Makes the learned caches of `program`; `parallel` is the same on all cores, for work that is not measured.

    `base` is the network in full precision, if `program` computes in less: fidelity is measured against its answers,
    also for requests that no lookup answers. `stages` are the seconds of each stage at batch 1, the means over the
    samples if these differ in length; `grids` are then those by length.
    """

    program: Program
    promise: Promise
    seed: int
    progress: Progress
    parallel: Program
    base: Program | None = None
    new_entry: bool = False  # the program has an empty first stage that its directory does not have yet
    stages: tuple[float, ...] = ()
    grids: tuple[Grid, ...] = ()

    @classmethod
    def of(
        cls,
        directory: ModelDirectory,
        promise: Promise,
        *,
        threads: int,
        backend: str | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Self:
        """Return a builder for the model as it is in the directory; `backend` None is the one built for."""
        torch.set_num_threads(threads)
        program = load_program(directory, threads=threads, backend=backend)
        parallel, exact = on_all_cores(directory, program), exact_beside(program.backend)
        base = None if exact is None else on_all_cores(directory, replace(program, backend=exact))
        return cls(program, promise, seed, progress or (lambda text, share: None), parallel, base)

    def build(
        self,
        directory: ModelDirectory,
        fit: Samples,
        held_out: Samples,
        *,
        folder: Path,
        most: int,
        kinds: Sequence[str],
        presentations: int,
    ) -> CacheReport:
        """Train lookups on `fit`, then choose and calibrate on `held_out`; without lookups if there cannot be any.

        They may come before the network too, unless rows differ in size: what is read of an input then, means and
        maxima, says too little. The settings are those of `build_caches`.
        """
        spec = self.program.spec
        if not self.program.entry and len(spec.inputs) == 1 and not spec.dims:
            self.program, self.parallel = self.program.with_entry(), self.parallel.with_entry()
            self.new_entry = True
        self.measure_stages(fit)
        reason = ""
        if not self.promise.exact:
            fewest = min(map(len, split_worlds(held_out, seed=self.seed)[1]), default=0)
            reason = "" if self.promise.can_show(fewest) else self.promise.not_shown(fewest)
            if len(fit) < FEWEST_ROWS:
                reason = (
                    f"{len(fit)} rows to fit are too few to train lookups: give {FEWEST_ROWS} or more (half of a file)"
                )
        if reason or self.promise.exact or len(self.stages) < 2:
            return self._without_lookups(directory, held_out, reason)
        (row,) = some_rows(fit, (0.5,))
        one_row = {
            stage: read(self.program.run_through(stage, *row)) for stage, read in enumerate(readings(self.program))
        }
        networks = [kind for kind in kinds if kind != BYTES]
        planned = plan(self.program, self.stages, one_row, most=most, kinds=networks)
        if self.new_entry and not (planned and planned[0].stage == 0):
            self.program, self.parallel = self.program.without_entry(), self.parallel.without_entry()
            self.stages, self.new_entry = self.stages[1:], False
            planned = [replace(one, stage=one.stage - 1) for one in planned]
        if not planned:
            return self._without_lookups(directory, held_out, "no lookup is small enough to pay after any stage")
        origin = Origin.of(directory, fit, seed=self.seed, presentations=presentations)
        explorer = Explorer(
            program=self.program,
            parallel=self.parallel,
            names=read_model(directory).boundaries(entry=self.program.entry),
            kept=ExplorationFolder.open(folder, origin),
            seed=self.seed,
            presentations=presentations,
            progress=self.progress,
            beside=self.promise.may_be_aside(self.program.threads),
        )
        found = explorer.train(planned, fit)
        trained, notes = list(found.trained), _notes(found, len(fit))
        if BYTES in kinds:
            coarse, left_out = explorer.eight_bit_lookup(directory, fit, found)
            trained += coarse
            notes += [f"the network in eight bits is left out: {left_out}"] if left_out else []
        report = self.calibrate(directory, in_order(trained), held_out)
        return replace(report, notes=tuple(notes))

    def stored_caches(self, directory: ModelDirectory, held_out: Samples) -> tuple[list[TrainedLookup], Samples]:
        """Load the lookups that were trained before and measure them on this machine; check the samples."""
        caches, program = read_caches(directory), self.program
        if caches is None or not caches.every:
            raise ConfigError(f"{directory.path} has no learned caches to calibrate: build them with data first")
        rows = checked(held_out, program.spec)
        self.measure_stages(rows)
        functions = load_functions(directory, caches.every, backend=program.backend, threads=program.threads)
        trained = []
        for one in caches.every:
            files, function = read_lookup(directory, one.name), functions[one.name]
            aside = self.promise.may_be_aside(program.threads)
            trained.append(TrainedLookup.measured(program, some_rows(rows), one, files, function, aside=aside))
        return in_order(trained), rows

    def _without_lookups(self, directory: ModelDirectory, held_out: Samples, reason: str) -> CacheReport:
        """Leave the model without lookups, but measure its accuracy."""
        if held_out.labels is not None:
            directory = _with_accuracy(directory, self.observe([], held_out), held_out)
        self.new_entry = False
        return self._publish(directory, Outcome((), self._costs([])), reason)

    def calibrate(self, directory: ModelDirectory, trained: Sequence[TrainedLookup], held_out: Samples) -> CacheReport:
        """Choose among the trained lookups and thresholds, verify the bound and write the result."""
        if self.promise.exact:
            return self._publish(directory, Outcome(trained, self._costs(trained)), "")
        self.progress("calibrating", 0.9)
        choose, verify = split_worlds(held_out, seed=self.seed)
        observed = self.observe(trained, held_out)
        directory = _with_accuracy(directory, observed, held_out)
        fewest = min(map(len, verify))
        if not self.promise.can_show(fewest):
            return self._publish(directory, Outcome(trained, self._costs(trained)), self.promise.not_shown(fewest))
        chooses = np.concatenate(choose)
        if any(one.lessons is not None for one in trained):  # only after training: a recalibration drops no selectors
            heads = without_idle_selectors(
                [one.files.head for one in trained], observed, chooses, fidelity=self.promise.fidelity
            )
            trained = [one.with_head(head) for one, head in zip(trained, heads, strict=True)]
            observed = apply_heads(
                heads, observed.features, observed.answers, own=observed.own, lengths=held_out.lengths
            )
        choosing, worlds = observed.seen.take(chooses), [observed.seen.take(rows) for rows in verify]
        trained = self._in_line_or_aside(trained, choosing)
        composition = self._within_usual_tail(self.composition(trained), choosing)
        found = composition.choose(choosing, worlds)
        outcome = Outcome(trained, composition.costs, found, worlds, observed, choosing)
        if found is not None:
            fidelities = sorted({*CURVE, self.promise.fidelity}, reverse=True)
            # Only of lookups that are kept: one at which no request leaves at the target is missing at other levels.
            used = {lookup.name for lookup in outcome.in_use()}
            kept = np.where([one.name in used for one in trained], found.thresholds, np.inf)
            curve = composition.curve(kept, choosing, worlds, fidelities) if used else []
            outcome = replace(outcome, curve=curve, whole=composition.whole(worlds, len(fidelities)))
        return self._publish(directory, outcome, "" if found else self._not_shown(composition, worlds))

    def _not_shown(self, composition: Composition, worlds: Sequence[Seen]) -> str:
        """Return why not even the network by itself is shown to keep the promise."""
        alone = composition.alone(worlds)
        return (
            f"the network itself, on {self.program.backend}, answers {alone.fidelity:.4f} of the held-out samples as "
            f"in full precision, which does not show a fidelity of {self.promise.fidelity:g}: there are no exits; ask "
            "for less, or build it with --backend openvino"
        )

    def _in_line_or_aside(self, trained: Sequence[TrainedLookup], choosing: Seen) -> Sequence[TrainedLookup]:
        """Return the lookups as they will run: aside if that was measured and is required or faster, else in line."""
        in_line = [replace(one, beside=None) for one in trained]
        if self.promise.aside is False or any(one.beside is None for one in trained):
            return in_line
        if self.promise.aside is None:
            aside, waiting = (self.composition(way).expected(choosing) for way in (trained, in_line))
            if aside * WORTH_A_CORE > waiting:
                return in_line
        return trained

    def _within_usual_tail(self, composition: Composition, choosing: Seen) -> Composition:
        """Limit the tail to the usual one, if no tail is asked for and the mean does not suffer much."""
        if np.isfinite(self.promise.tail):
            return composition
        usual = replace(composition, promise=replace(self.promise, tail=USUAL_TAIL))
        within = usual.expected(choosing) <= WORTH_A_TAIL * composition.expected(choosing)
        return usual if within else composition

    def observe(self, trained: Sequence[TrainedLookup], held_out: Samples) -> Observed:
        """Return what the lookups answer on the samples. Raises `ConfigError` if the network answers with NaN."""
        with all_cores(self.program.threads):
            seen = observe(self.parallel, held_out, [(one.stage, one.function) for one in trained], base=self.base)
        check_answers(seen.answers)
        return seen

    def composition(self, trained: Sequence[TrainedLookup]) -> Composition:
        """Return the problem of choosing among the lookups; hit rates and accuracies come from the samples."""
        sizes = [0 if one.kind == BYTES else one.files.bytes for one in trained]  # whoever asks for it knows its size
        variants = [
            Variant(one.stage, one.kind, 0.0, 1.0, one.known.at(1), size)
            for one, size in zip(trained, sizes, strict=True)
        ]
        return Composition(tuple(variants), self._costs(trained), self.stages, self.promise)

    def measure_stages(self, samples: Samples) -> None:
        """Measure the seconds of each stage at batch 1 now, under the same conditions as the lookups.

        If samples differ in length, this covers lengths from their shortest to their longest.
        """
        program, spec = self.program, self.program.spec
        rows = some_rows(samples, MEASURED)
        if samples.lengths is None:
            self.stages = tuple(grid.at(1) for grid in profile_stages(program.stages, rows[0], (1,)))
            return
        sizes = [
            spec.dims_of({one.name: part.shape[1:] for one, part in zip(spec.inputs, row, strict=True)}) for row in rows
        ]
        self.grids = profile_stages(program.stages, rows[-1], (1,), specs=spec.inputs, dims=spec.dims, over=sizes)
        self.stages = tuple(over_lengths(self.grids, samples.lengths.numpy()))

    def _costs(self, trained: Sequence[TrainedLookup]) -> Costs:
        return Costs.of(
            self.stages,
            [(one.stage, one.known.at(1), one.slower) for one in trained],
            aside=bool(trained) and trained[0].beside is not None,
            sure=tuple(place for place, one in enumerate(trained) if one.files.head.sure),
            grids=self.grids,
        )

    def _publish(self, directory: ModelDirectory, outcome: Outcome, reason: str) -> CacheReport:
        """Write the lookups and return the report; `reason` says why there are no lookups."""
        promise, found, trained = self.promise, outcome.found, outcome.trained
        lookups = outcome.in_use()
        whole = sum(self.stages)
        shown = found if lookups or outcome.is_coarse else None
        if found and not lookups:
            found, reason = None, nothing_pays(whole)
        kept = outcome.kept(lookups)
        used = {lookup.name for lookup in lookups}
        caches = StoredCaches(
            format=FORMAT,
            target=promise.fidelity,
            confidence=promise.confidence,
            fidelity=shown.fidelity if shown else 1.0,
            lower=shown.lower if shown else 1.0,
            calibrated_on=sum(seen.right.shape[1] for seen in outcome.worlds),
            lookups=lookups,
            spare=tuple(
                SpareLookup(one.stage, one.kind, one.files.bytes, one.known, slower=one.slower)
                for one in kept
                if one.name not in used
            ),
            tail=promise.tail if np.isfinite(promise.tail) else None,
            aside=outcome.costs.beside is not None,
            answers=promise.answers,
            levels=outcome.levels(used) if lookups else (),
            whole=outcome.whole if lookups else 1.0,
        )
        after = write_caches(
            directory,
            caches,
            {one.name: one.files for one in kept},
            held_out=outcome.held_out(kept),
            lessons=lessons(directory, kept),
            new_entry=self.new_entry and bool(kept),
        )
        return CacheReport(
            directory=after,
            caches=caches,
            tried=tuple(self._tried(outcome, k) for k in range(len(trained))) if outcome.worlds else (),
            seconds_without=whole,
            seconds_with=found.seconds if found else whole,
            warning=reason,
            right=read_accuracy(after),
            by_length=outcome.by_length(),
            precision=outcome.precision(self.program.backend),
        )

    def _tried(self, outcome: Outcome, k: int) -> TriedLookup:
        one, choosing = outcome.trained[k], outcome.choosing
        assert choosing is not None
        where = "before the network" if self.program.entry and one.stage == 0 else f"after stage {one.stage}"
        fidelity = min(float(seen.right[k].mean()) for seen in outcome.worlds)
        hits, wrong = hits_alone(choosing.scores[k], choosing.right[k], 1.0 - self.promise.fidelity)
        return TriedLookup(
            where, one.stage, one.kind, fidelity, one.known.at(1), one.files.bytes, hits, accuracy=1.0 - wrong
        )


def _with_accuracy(directory: ModelDirectory, seen: Observed, held_out: Samples) -> ModelDirectory:
    """Write the network's accuracy into the directory, if the samples have labels."""
    if held_out.labels is None:
        return directory
    return write_accuracy(directory, accuracy_of(seen.answers if seen.own is None else seen.own, held_out.labels))


def _notes(found: ExplorationResult, rows: int) -> list[str]:
    """Return notes on networks that were reused, and on boundaries that learned from fewer rows than given."""
    notes = [f"{found.reused} of {len(found.trained)} networks taken from an earlier run"] if found.reused else []
    for stage, learned in found.limited.items():
        notes.append(f"after stage {stage} the disk had room for {learned} rows to learn from, of {rows} to fit")
    return notes


def without_idle_selectors(
    heads: Sequence[Head], seen: Observed, rows: NDArray[np.int64], *, fidelity: float
) -> list[Head]:
    """Return the heads, without their selector if at least as many of `rows` hit at `fidelity` without it.

    GATI (appendix A.2.1) finds selectors better than a threshold on softmax, whose fidelity is hard to control. Here
    calibration controls fidelity either way. What counts is the hit rate, and the microseconds that a selector takes:
    ResNet-56's predictors gained nothing from one in four builds of four.
    """
    found = []
    for place, head in enumerate(heads):
        if head.sure:
            found.append(head)
            continue
        plain, right = head.without_selector(), seen.seen.right[place, rows]
        _, odds = HeadFunction(plain)(seen.features[place].numpy()[rows])
        with_it = hits_alone(seen.seen.scores[place, rows], right, 1.0 - fidelity)[0]
        without = hits_alone(odds.astype(np.float64), right, 1.0 - fidelity)[0]
        found.append(plain if without >= with_it else head)
    return found


def nothing_pays(seconds: float) -> str:
    """Return the message that no lookup is used for a network that takes these seconds, and what may change that."""
    short = f"; in {seconds * 1e3:.2f} ms there is little to save" if seconds < LITTLE else ""
    return (
        f"no lookup pays at this target: the network runs to its end{short}. A lower fidelity or more rows like the "
        "traffic may change that: docs/choosing.md"
    )
