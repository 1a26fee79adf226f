"""Builds learned caches for a model directory: plan, train, choose, calibrate, write (GATI, sections 3 and 4)."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

from latebind.domain.errors import ConfigError
from latebind.learned.builder import Builder, BuildSettings, ExplorationSettings
from latebind.learned.compose import Seen
from latebind.learned.composition import Composition
from latebind.learned.eight_bits import before_sure
from latebind.learned.explore import (
    Progress,
    TrainedLookup,
    first_row,
    in_order,
)
from latebind.learned.latency import latency_aside, latency_in_place
from latebind.learned.lookup import load_functions
from latebind.learned.networks import check_kinds
from latebind.learned.plan import Candidate
from latebind.learned.promise import ANSWERS, CACHE_BYTES, Promise
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples, checked
from latebind.learned.stored import read_caches, read_lookup
from latebind.learned.task import Task, doubt
from latebind.repository.directory import ModelDirectory

CANDIDATES = 3
PRESENTATIONS = 300_000  # rows that each predictor sees, repetitions counted
DISK = 20 << 30


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
    task: Task | None = None,
    progress: Progress | None = None,
) -> CacheReport:
    """Train lookups behind stages, choose among them and write them into the model directory.

    `fidelity` is the share of the next `answers` that must equal the base model's, on samples like `calibrate` and with
    `confidence` (None: of all answers that there could be, see `learned.bounds`); 1.0 means no lookups at all. `fit`
    and `calibrate` must have no sample in common. Rows of `fit` that show the same thing must be neighbours, because
    its last part is kept from the predictors.

    Activations take at most `disk` bytes at a time, the weights of all lookups in use `cache_bytes`. A request that no
    lookup answers takes at most `tail` times the base model's latency. If `tail` is not given, `USUAL_TAIL` holds,
    unless lookups without that limit are more than 1.25 times faster in the mean. Lookups run `aside`, on a core of
    their own while the network goes on, or in line; by default whichever is measured to be faster.

    Lookups are tried at up to `candidates` boundaries (0: all). At each, the most able network that pays is trained, or
    all of `kinds` that may pay (`networks.make_predictor`). Composition then chooses which of them are used (GATI,
    section 4), and the report compares the choices. With a folder `explored`, networks are kept there as soon as they
    are trained. Those that an earlier call left there for the same model, rows, seed and presentations are reused.

    Raises `ConfigError` for settings or samples that make no sense (NaN among them), for models that are no classifiers
    with one output `(B, classes) float32`, and where nothing says that the model is a classifier: neither `task` nor
    labels nor a softmax at its end. Raises `TrainingStopped` if a training process dies. With too few samples for the
    target there are fewer exits or none, and a warning says so.
    """
    promise = Promise(fidelity, confidence, cache_bytes, inf if tail is None else tail, aside, answers)
    if candidates < 0 or presentations < 1 or disk < 1:
        raise ConfigError("presentations and disk must be 1 or more, candidates 1 or more or 0 for all boundaries")
    check_kinds(kinds)
    if unknown := doubt(directory, (fit, calibrate), task):
        raise ConfigError(unknown)
    builder = Builder.without_caches(directory, BuildSettings(promise, threads, None, seed, progress))
    ready = [checked(samples, builder.program.spec) for samples in (fit, calibrate)]
    with nullcontext(explored) if explored else TemporaryDirectory(prefix="latebind-") as folder:
        work = ExplorationSettings(Path(folder), candidates, tuple(kinds), presentations, disk)
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
    """Choose lookups and thresholds of a model directory anew on `held_out`, without training.

    `backend` is the one that will serve, if it is not the one built for; `tail` is that of the build unless it is
    given. Other settings and errors are those of `build_caches`; a model without learned caches raises `ConfigError`.
    """
    caches = read_caches(directory)
    if tail is None and caches is not None:
        tail = caches.tail
    promise = Promise(fidelity, confidence, cache_bytes, inf if tail is None else tail, aside, answers)
    builder, trained, rows = _stored_caches(
        directory, held_out, BuildSettings(promise, threads, backend, seed, progress)
    )
    return builder.calibrate(directory, trained, rows)


def observe_caches(
    directory: ModelDirectory,
    held_out: Samples,
    promise: Promise,
    *,
    threads: int = 1,
    backend: str | None = None,
) -> tuple[Seen, Composition]:
    """Return what all learned caches of a model directory answer on `held_out`, and the problem of choosing among them.

    For trying calibrations on parts of the samples: nothing is written. Lookups run aside or in line as they were
    built. Raises what `recalibrate` raises.
    """
    caches = read_caches(directory)
    promise = replace(promise, aside=caches is not None and caches.aside)
    builder, trained, rows = _stored_caches(directory, held_out, BuildSettings(promise, threads, backend))
    return builder.observe(trained, rows).seen, builder.composition(trained)


def _stored_caches(
    directory: ModelDirectory, held_out: Samples, work: BuildSettings
) -> tuple[Builder, list[TrainedLookup], Samples]:
    """Load the lookups that were trained before and measure them on this machine."""
    caches = read_caches(directory)
    if caches is None or not caches.every:
        raise ConfigError(f"{directory.path} has no learned caches to calibrate: build them with data first")
    builder = Builder.of(directory, work)
    program = builder.program
    rows = checked(held_out, program.spec)
    builder.stages = builder.stage_seconds(rows)
    trained = []
    functions = load_functions(directory, caches.every, backend=program.backend, threads=work.threads)
    for one in caches.every:
        place = (program, first_row(rows), one.stage, functions[one.name])
        curve = latency_in_place(*place)
        candidate = Candidate(one.stage, one.kind, curve.at(1))
        beside = latency_aside(*place) if work.promise.may_be_aside(work.threads) else None
        files = read_lookup(directory, one.name)
        trained.append(TrainedLookup(candidate, files, functions[one.name], curve, beside=beside))
    return builder, in_order(before_sure(program, first_row(rows), trained)), rows
