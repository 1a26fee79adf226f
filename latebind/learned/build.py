"""Building learned caches for a model directory: plan, train, choose, calibrate, write (GATI, sections 3 and 4)."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.activations import observe
from latebind.learned.calibrate import Calibrated, samples_needed
from latebind.learned.compose import Costs, Seen, send
from latebind.learned.composition import Composition, Trial
from latebind.learned.explore import FEWEST_ROWS, Explorer, Progress, Trained, all_cores, first_row, on_all_cores
from latebind.learned.ilp import Variant
from latebind.learned.latency import latency_in_place
from latebind.learned.lookup import load_functions
from latebind.learned.networks import make_predictor
from latebind.learned.plan import Candidate, plan
from latebind.learned.report import CacheReport, ToldTrial, Tried
from latebind.learned.samples import Samples
from latebind.learned.stored import (
    FORMAT,
    SpareLookup,
    StoredCaches,
    StoredLookup,
    read_caches,
    read_lookup,
    write_caches,
)
from latebind.program.load import load_program
from latebind.program.measure import profile_stages
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory

CANDIDATES = 3
PRESENTATIONS = 300_000  # rows that each predictor sees, repetitions counted
MEMORY = 6 << 30
CACHE_BYTES = 8_000_000
CHOOSE_SHARE = 0.3  # of the rows to calibrate; the bound is taken on the others


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
    memory: int = MEMORY,
    cache_bytes: int = CACHE_BYTES,
    progress: Progress | None = None,
) -> CacheReport:
    """Train lookups behind stages, choose among them and write them into the model directory.

    `fidelity` is the share of answers that must equal the base model's, on samples like `calibrate` and with
    `confidence`; 1.0 means no lookups at all. `fit` and `calibrate` must have no sample in common, and rows of `fit`
    that show the same thing must be neighbours, because its last part is kept from the predictors. Activations take
    at most `memory` bytes at a time, the weights of all lookups in use `cache_bytes`.

    There are up to `candidates` boundaries. At each, the most able network that pays is trained, or all of `kinds` that
    may pay (`networks.make_predictor`); then which are used is composed (GATI, section 4), and the report compares.

    Raises `ConfigError` for settings or samples without sense and for models that are not classifiers with one output
    `(B, classes) float32`. With too few samples for the target there are fewer exits or none, and a warning says so.
    """
    _check_settings(fidelity, confidence, candidates, presentations)
    torch.set_num_threads(threads)
    program = load_program(directory, threads=threads)
    _check_classifier(program)
    new_entry = not program.entry and len(program.spec.inputs) == 1
    wide = on_all_cores(directory, program)
    if new_entry:
        program, wide = program.with_entry(), wide.with_entry()
    for kind in kinds:
        make_predictor((8, 8, 8), 2, kind)  # an unknown kind is told before anything is trained
    builder = _Builder(
        program, fidelity, confidence, seed, progress or (lambda text, share: None), wide, cache_bytes, new_entry
    )
    ready = [_ready(samples, program) for samples in (fit, calibrate)]
    found = builder.build(directory, *ready, most=candidates, kinds=kinds, presentations=presentations, memory=memory)
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
    progress: Progress | None = None,
) -> CacheReport:
    """Choose the thresholds of the learned caches in a model directory anew on `held_out`, without training.

    `backend` is the one that will serve, if not the one built for. Other settings and errors are those of
    `build_caches`; a model without learned caches raises `ConfigError`.
    """
    _check_settings(fidelity, confidence, 1, 1)
    torch.set_num_threads(threads)
    caches = read_caches(directory)
    if caches is None or not caches.stages:
        raise ConfigError(f"{directory.path} has no learned caches to calibrate: build them with data first")
    program = load_program(directory, threads=threads, backend=backend)
    wide = on_all_cores(directory, program)
    builder = _Builder(program, fidelity, confidence, seed, progress or (lambda text, share: None), wide, cache_bytes)
    rows = _ready(held_out, program)
    builder.stages = builder.stage_seconds(rows)
    trained = []
    for stage, function in load_functions(directory, caches.stages, backend=program.backend, threads=threads).items():
        curve = latency_in_place(program, first_row(rows), stage, function)
        trained.append(
            Trained(Candidate(stage, caches.kinds[stage], curve.at(1)), read_lookup(directory, stage), function, curve)
        )
    return builder.calibrate(directory, trained, rows)


@dataclass(slots=True)
class _Builder:
    program: Program
    target: float
    confidence: float
    seed: int
    progress: Progress
    wide: Program  # the same, but on all cores: for work that is not measured
    cache_bytes: int
    new_entry: bool = False  # the program has an empty first stage that its directory does not have yet
    stages: tuple[float, ...] = ()

    def build(
        self,
        directory: ModelDirectory,
        fit: Samples,
        held_out: Samples,
        *,
        most: int,
        kinds: Sequence[str],
        presentations: int,
        memory: int,
    ) -> CacheReport:
        self.stages = self.stage_seconds(fit)
        reason = self._too_few(fit, held_out)
        if reason or self.target >= 1.0 or len(self.stages) < 2:
            return self._write(directory, [], None, [], reason)
        planned = plan(self.program, self.stages, self._one_row(fit), most=most, kinds=kinds)
        if self.new_entry and not (planned and planned[0].stage == 0):
            planned = self._without_entry(planned)
        if not planned:
            return self._write(directory, [], None, [], "no lookup is small enough to pay behind any stage")
        explorer = Explorer(self.program, self.wide, self.seed, self.progress)
        trained = explorer.train(planned, fit, presentations=presentations, memory=memory)
        return self.calibrate(directory, trained, held_out)

    def _without_entry(self, planned: list[Candidate]) -> list[Candidate]:
        """Nothing will stand before the network: it keeps the stages that it has."""
        self.program, self.wide = self.program.without_entry(), self.wide.without_entry()
        self.stages, self.new_entry = self.stages[1:], False
        return [replace(one, stage=one.stage - 1) for one in planned]

    def calibrate(self, directory: ModelDirectory, trained: list[Trained], held_out: Samples) -> CacheReport:
        """Choose among the trained lookups and their thresholds, show the bound, write what holds."""
        if self.target >= 1.0:
            return self._write(directory, trained, None, [], "")
        self.progress("calibrating", 0.85)
        with all_cores(self.program.threads):
            seen = observe(self.wide, held_out, [(one.plan.stage, one.function) for one in trained])
        choose, verify = split_worlds(held_out, seed=self.seed)
        choosing, worlds = seen.take(np.concatenate(choose)), [seen.take(rows) for rows in verify]
        composition = Composition(
            tuple(_variant(one) for one in trained),
            self._costs(trained),
            self.stages,
            self.target,
            self.confidence,
            self.cache_bytes,
        )
        taken = composition.choose(choosing, worlds)
        self.progress("comparing", 0.95)
        others = composition.others(choosing, worlds) if len(trained) > 1 else []
        reason = "" if taken.calibrated else _not_shown(self.target, self.confidence, min(map(len, verify)))
        report = self._write(directory, trained, taken.calibrated, worlds, reason)
        return replace(report, trials=tuple(self._told(trial, trained) for trial in (taken, *others)))

    def _told(self, trial: Trial, trained: list[Trained]) -> ToldTrial:
        names = tuple(f"{self._where(trained[k].plan.stage)}: {trained[k].plan.kind}" for k in trial.choice)
        seconds = trial.calibrated.seconds if trial.calibrated else sum(self.stages)
        return ToldTrial(trial.rule, names, seconds)

    def stage_seconds(self, samples: Samples) -> tuple[float, ...]:
        """Measured here and now, so that stages and lookups are measured alike."""
        curves = profile_stages(self.program.stages, first_row(samples), (1,))
        return tuple(curve.at(1) for curve in curves)

    def _one_row(self, samples: Samples) -> dict[int, Tensor]:
        return {stage: self.program.run_through(stage, *first_row(samples)) for stage in range(len(self.stages) - 1)}

    def _costs(self, trained: list[Trained]) -> Costs:
        ends = [one.plan.stage + 1 for one in trained]
        starts = [0, *ends]
        segments = tuple(
            sum(self.stages[start:end]) for start, end in zip(starts, [*ends, len(self.stages)], strict=True)
        )
        return Costs(segments, tuple(one.curve.at(1) for one in trained))

    def _too_few(self, fit: Samples, held_out: Samples) -> str:
        if self.target >= 1.0:
            return ""
        if len(fit) < FEWEST_ROWS:
            return f"{len(fit)} rows to fit are too few to train lookups: give {FEWEST_ROWS} or more"
        fewest = min(map(len, split_worlds(held_out, seed=self.seed)[1]), default=0)
        if fewest < samples_needed(self.target, self.confidence):
            return _not_shown(self.target, self.confidence, fewest)
        return ""

    def _write(
        self,
        directory: ModelDirectory,
        trained: list[Trained],
        found: Calibrated | None,
        worlds: list[Seen],
        reason: str,
    ) -> CacheReport:
        whole = sum(self.stages)
        lookups = self._stored(trained, found, worlds)
        kept = self._kept(trained, lookups, worlds)
        used = {lookup.stage for lookup in lookups}
        spare = tuple(SpareLookup(stage, one.plan.kind) for stage, one in kept.items() if stage not in used)
        if found is not None and not lookups:
            reason = "no lookup pays at this target: the network runs to its end"
        rows = sum(seen.right.shape[1] for seen in worlds)
        fidelity, lower = (found.fidelity, found.lower) if found and lookups else (1.0, 1.0)
        caches = StoredCaches(FORMAT, self.target, self.confidence, fidelity, lower, rows, lookups, spare)
        files = {stage: one.files for stage, one in kept.items()}
        after = write_caches(directory, caches, files, new_entry=self.new_entry and bool(trained))
        tried = tuple(self._tried(one, k, worlds) for k, one in enumerate(trained)) if worlds else ()
        seconds = found.seconds if found and lookups else whole
        return CacheReport(
            after, self.target, self.confidence, tried, lookups, fidelity, lower, rows, whole, seconds, reason
        )

    def _kept(
        self, trained: list[Trained], lookups: tuple[StoredLookup, ...], worlds: list[Seen]
    ) -> dict[int, Trained]:
        """Return by stage the lookup in use, else the one that is right most often: another calibration may use it."""
        kinds = {(lookup.stage, lookup.kind) for lookup in lookups}

        def worth(k: int) -> tuple[bool, float]:
            one = trained[k]
            return (one.plan.stage, one.plan.kind) in kinds, sum(float(seen.right[k].mean()) for seen in worlds)

        stages = sorted({one.plan.stage for one in trained})
        best = {
            stage: max((k for k, one in enumerate(trained) if one.plan.stage == stage), key=worth) for stage in stages
        }
        return {stage: trained[k] for stage, k in best.items()}

    def _stored(self, trained: list[Trained], found: Calibrated | None, worlds: list[Seen]) -> tuple[StoredLookup, ...]:
        if found is None:
            return ()
        results = [send(found.thresholds, seen, self._costs(trained)) for seen in worlds]
        left_at = np.concatenate([result.left_at for result in results])
        wrong = np.concatenate([result.wrong for result in results])
        stored = []
        for k, one in enumerate(trained):
            hits = left_at == k
            if np.isfinite(found.thresholds[k]) and hits.any():
                share, equal = float(hits.mean()), 1.0 - float(wrong[hits].mean())
                threshold = float(found.thresholds[k])
                stored.append(
                    StoredLookup(one.plan.stage, one.plan.kind, threshold, share, equal, one.bytes, one.curve)
                )
        return tuple(stored)

    def _tried(self, one: Trained, k: int, worlds: list[Seen]) -> Tried:
        stage = one.plan.stage
        fidelity = min(float(seen.right[k].mean()) for seen in worlds)
        return Tried(self._where(stage), stage, one.plan.kind, fidelity, one.curve.at(1), one.bytes)

    def _where(self, stage: int) -> str:
        return "before the network" if self.program.entry and stage == 0 else f"behind stage {stage}"


def _variant(one: Trained) -> Variant:
    """What composition knows beforehand; hit rate and accuracy come from the samples."""
    return Variant(one.plan.stage, one.plan.kind, 0.0, 1.0, one.curve.at(1), one.bytes)


def split_worlds(
    samples: Samples, *, seed: int
) -> tuple[list[np.ndarray[tuple[int], np.dtype[np.int64]]], list[np.ndarray[tuple[int], np.dtype[np.int64]]]]:
    """Return row numbers for choosing and for verifying, each by world.

    Worlds of the same size are parted alike, so that what is seen in several worlds, in the same order, stays whole.
    """
    worlds = samples.worlds.numpy() if samples.worlds is not None else np.zeros(len(samples), dtype=np.int64)
    choose, verify = [], []
    for world in np.unique(worlds):
        rows = np.flatnonzero(worlds == world)
        order = rows[np.random.default_rng(seed).permutation(len(rows))]
        cut = round(CHOOSE_SHARE * len(rows))
        choose.append(np.sort(order[:cut]))
        verify.append(np.sort(order[cut:]))
    return choose, verify


def _check_settings(fidelity: float, confidence: float, candidates: int, presentations: int) -> None:
    if not 0.0 < fidelity <= 1.0:
        raise ConfigError(f"fidelity {fidelity} is not above 0 and at most 1: give the share of equal answers, as 0.97")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence {confidence} is not between 0 and 1: give a share, as 0.95")
    if candidates < 1 or presentations < 1:
        raise ConfigError("candidates and presentations must be 1 or more")


def _check_classifier(program: Program) -> None:
    name, outputs = program.spec.name, program.spec.outputs
    if len(outputs) != 1:
        raise ConfigError(f"{name} has {len(outputs)} outputs: learned caches answer for classifiers with one output")
    if outputs[0].dtype != "float32" or len(outputs[0].shape) != 1 or outputs[0].shape[0] < 2:
        raise ConfigError(
            f"{name} yields {outputs[0].dtype} of shape {outputs[0].shape} a row: learned caches answer for "
            "classifiers, "
            "which yield one float32 for each of 2 or more classes"
        )


def _ready(samples: Samples, program: Program) -> Samples:
    ordered = samples.ordered(program.spec.inputs)
    classes = program.spec.outputs[0].shape[0]
    if len(ordered) == 0:
        raise ConfigError("there are no samples: give rows to fit and to calibrate")
    labels = ordered.labels
    if labels is not None and (labels.is_floating_point() or not 0 <= int(labels.min()) <= int(labels.max()) < classes):
        raise ConfigError(
            f"labels must be whole numbers from 0 to {classes - 1}: learned caches answer for classifiers"
        )
    return ordered


def _not_shown(target: float, confidence: float, rows: int) -> str:
    return (
        f"{rows} held-out samples cannot show a fidelity of {target:g} with {confidence:.0%} confidence for any exit "
        f"(without one wrong answer it takes {samples_needed(target, confidence)}): there are no exits; "
        "give more samples to calibrate"
    )
