"""What `latebind build` and `latebind calibrate` do once their options are read."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from latebind.cli.build import Compiled, Lookups, Made, Promised, Rows, Training
from latebind.cli.console import console, progress, save, show, show_pairs
from latebind.cli.options import in_bytes, read_dims
from latebind.cli.sources import (
    check_batch,
    example_inputs,
    load_module,
    load_rows,
    load_samples,
    samples_for,
)
from latebind.domain.defaults import CANDIDATES, MAX_OVERHEAD
from latebind.domain.errors import ConfigError
from latebind.domain.model import Task, TensorSpec
from latebind.engine.cores import threads_here
from latebind.folders.build import NO_DATA, build_folder, build_near, check_fidelity, data_of, read_folder
from latebind.folders.files import is_folder
from latebind.folders.hub import folder_name
from latebind.learned.build import build_caches, recalibrate
from latebind.learned.exploration_folder import delete_exploration, explored_folder
from latebind.learned.networks import EVERY, check_kinds
from latebind.learned.samples import Samples, check_task, doubt
from latebind.learned.vectors import DECLARE, certify, rows_of, summary
from latebind.program.build import build_program
from latebind.program.choose import Settings
from latebind.program.lengths import input_specs
from latebind.program.measure import with_batch
from latebind.program.metadata import read_model, read_profile
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Repository
from latebind.sequence.build import build_sequence
from latebind.sequence.export import TOKENS, is_sequence
from latebind.server.limits import too_large_a_row

ALL = "all"
FULL = "full: no backend of lower precision is faster here and accurate enough, so every vector is the network's own"


@dataclass(frozen=True, slots=True)
class Building:
    """The checked options of one build, in groups, and the arguments of `build_program` among them.

    `stages` say where to cut; a sequence model is not cut.
    """

    made: Made
    rows: Rows
    training: Training
    promised: Promised
    stages: dict[str, Any]
    how: dict[str, Any]
    seed: int

    @property
    def title(self) -> str:
        """The model's name."""
        return str(self.how["name"])

    def add_caches(self, samples: tuple[Samples, Samples], task: str) -> dict[str, object]:
        """Train learned caches for the model that was built, if it is a classifier, and return figures of them."""
        path: Path = self.how["directory"]
        if unknown := doubt(ModelDirectory.open(path), samples, task):
            show_pairs("no learned caches", [("why", unknown)])
            return {}
        training, promise = self.training, self.promised.promise()
        with progress("learning caches") as on_progress, warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=__name__)  # the table shows it
            if training.fresh:
                delete_exploration(explored_folder(path))
            learned = build_caches(
                ModelDirectory.open(path),
                *samples,
                fidelity=promise.fidelity,
                confidence=promise.confidence,
                presentations=training.lessons,
                kinds=_kinds(training),
                candidates=0 if ALL in (training.kind or ()) else CANDIDATES,
                explored=explored_folder(path),
                cache_bytes=promise.cache_bytes,
                answers=promise.answers,
                task=task,
                threads=self.how["threads"],
                seed=self.seed,
                progress=on_progress,
            )
        show_pairs(f"learned caches for fidelity {promise.fidelity:g}", learned.rows())
        if learned.tried:
            show("all networks explored, each alone at the target", learned.variants())
        return {"caches": learned.rows(), "variants": learned.variants()}


def build_model(
    made: Made,
    rows: Rows,
    training: Training,
    promised: Promised,
    compiled: Compiled,
    *,
    seed: int,
    json_file: Path | None,
) -> None:
    """Build what the options ask for and show it; raises `ConfigError` for what cannot be built."""
    # Options that no build can take are refused before a module is made.
    from_folder = is_folder(made.module)
    title = made.name or (folder_name(made.module) if from_folder else made.module.rpartition(":")[2])
    path = Repository(made.repository).path_for(title, made.version)
    stages: dict[str, Any] = {
        "min_stage_seconds": compiled.min_stage_ms / 1e3,
        "min_stage_bytes": in_bytes("--min-stage-mb", compiled.min_stage_mb, 1e6),
        "max_overhead": MAX_OVERHEAD if compiled.min_stage_ms else None,
    }
    how: dict[str, Any] = {
        "max_batch": compiled.max_batch,
        "backends": compiled.backend,
        "tolerance": compiled.tolerance,
        "threads": 1 if compiled.threads is None else compiled.threads,
    }
    declared = compiled.tolerance or promised.asked().tolerance  # a distance allows what a tolerance does
    Settings.checked(title, made.version, **(how | {"tolerance": declared}))
    _kinds(training)
    how |= {"directory": path, "name": title, "version": made.version}
    building = Building(made, rows, training, promised, stages, how, seed)
    figures = _folder(building, compiled.threads) if from_folder else _module(building)
    console.print(f"serve it with: latebind serve {made.repository}")
    save(json_file, figures)


def _kinds(training: Training) -> tuple[str, ...]:
    """Return the kinds of predictors to train, each once. Raises `ConfigError` for an unknown one."""
    named = [one for kind in training.kind or () for one in (EVERY if kind == ALL else (kind,))]
    check_kinds(named)
    return tuple(dict.fromkeys(named))


def _module(building: Building) -> dict[str, object]:
    """Build the module that a function returns, with learned caches if there is data."""
    made, rows, title = building.made, building.rows, building.title
    check_task(rows.task)
    if building.promised.asked().cosine is not None:
        raise ConfigError(
            f"--fidelity {building.promised.asked()}: a cosine is promised only for embeddings from a Hugging Face "
            "folder; build other modules that return vectors with --tolerance, then run `latebind calibrate`"
        )
    network = load_module(made.module, made.weights)
    examples, varying = example_inputs(made.inputs or (), made.dims or (), seed=building.seed)
    given = {name: (str(some.dtype).removeprefix("torch."), some.shape[1:]) for name, some in examples.items()}
    specs = input_specs(given, *varying)
    _check_size(title, specs, building.how["max_batch"])
    if is_sequence(network):
        return _sequence(network, examples, building)
    samples = load_samples(rows.data, rows.data_option, seed=building.seed, inputs=specs) if rows.data else None
    # checked before anything is made, and an earlier model replaced
    ordered = [part.ordered(specs, varying.dims) for part in samples or ()]
    data = ordered[0].typical() if ordered else None
    if data is not None and varying.dims:  # so that measured rows are as long as those to come
        examples = dict(zip(examples, with_batch(data, 2), strict=True))
    with progress(f"building {title}") as on_progress:
        built = build_program(
            network,
            examples,
            dims=varying.dims,
            sizes=varying.sizes,
            outputs=made.outputs,
            data=data,
            progress=on_progress,
            **building.stages,
            **building.how,
        )
    show_pairs(f"{title} version {made.version}", built.rows())
    figures: dict[str, object] = {"program": built.rows(), "caches": None, "variants": None, "composition": None}
    if samples is not None:
        figures |= building.add_caches(samples, rows.task)
    return figures


def _check_size(title: str, specs: Sequence[TensorSpec], most: int) -> None:
    """Warn of rows that do not fit in a request, and raise `ConfigError` for batches that do not fit in memory."""
    check_batch(specs, most)
    if warning := too_large_a_row(specs):
        console.print(f"{title}: {warning}", markup=False, highlight=False)


def _folder(building: Building, threads: int | None) -> dict[str, object]:
    """Build a folder as Hugging Face saves it, with learned caches if there is data."""
    made, rows, title = building.made, building.rows, building.title
    with progress(f"building {title}") as on_progress:
        on_progress("reading the folder", 0.0)
        folder = read_folder(made.module, task=rows.task, dims=tuple(read_dims(made.dims or ()).values()))
        about, fidelity = folder.about, building.promised.asked()
        if threads is None:
            building.how["threads"] = threads_here(about)
        embeds = about.task is Task.EMBED
        check_fidelity(folder, fidelity, has_data=bool(rows.data))
        _check_size(title, folder.specs(), building.how["max_batch"])
        data = NO_DATA
        if rows.data:
            on_progress("reading the data", 0.0)
            columns = {"text_column": rows.text_column, "label_column": rows.label_column}
            data = data_of(folder, Path(rows.data), **columns, seed=building.seed)
        making = {"data": data, "progress": on_progress, **building.stages, **building.how}
        near, refused = None, ""
        if fidelity.cosine is None:
            built = build_folder(folder, **making)
        else:
            built, near, refused = build_near(folder, fidelity=fidelity, promise=building.promised.promise(), **making)
    takes = ", ".join(each.name + " (optional)" * each.optional for each in about.raw)
    facts = [
        ("task", f"{about.task}, of {takes}"),
        *(("note", line) for line in (*folder.notes, *data.notes)),
        *built.rows(),
    ]
    show_pairs(f"{title} version {made.version}", facts)
    figures: dict[str, object] = {"program": facts, "caches": None, "variants": None, "composition": None}
    if embeds and data.samples is not None:
        shown = rows_of(near) if near is not None else [("precision", DECLARE if fidelity.cosine is None else FULL)]
        shown += [("warning", refused)] if refused else []
        show_pairs(f"vectors for fidelity {fidelity}", shown)
        return figures | {"vectors": shown}
    if data.samples is not None:
        figures |= building.add_caches(data.samples, Task.CLASSIFY)
    return figures


def _sequence(network: nn.Module, examples: dict[str, Tensor], building: Building) -> dict[str, object]:
    """Build a sequence model, on rows like those to come if there are any."""
    made, rows, title = building.made, building.rows, building.title
    if made.outputs:
        raise ConfigError(f"--output {made.outputs[0]}: a sequence model has one output, {TOKENS}: leave --output out")
    if made.dims:
        raise ConfigError(
            f"--dim {made.dims[0]}: rows of a sequence model have any length already: give the longest as a number"
        )
    tokens = next(iter(examples.values()))
    if rows.data:
        arrays = list(load_rows(rows.data, rows.data_option)[0].values())
        if len(examples) != 1 or len(arrays) != 1 or arrays[0].shape[1:] != tokens.shape[1:]:
            raise ConfigError(
                f"--data {rows.data!r} must give one array of rows like --input {' '.join(made.inputs or ())}"
            )
        tokens = torch.from_numpy(arrays[0])
    with progress(f"building {title}") as on_progress:
        built = build_sequence(network, tokens, measured_lengths=bool(rows.data), progress=on_progress, **building.how)
    show_pairs(f"{title} version {made.version}", built.rows())
    return {"program": built.rows()}


def calibrate_model(
    path: Path,
    data: str,
    data_option: Sequence[str] | None,
    promised: Promised,
    backend: str | None,
    threads: int | None,
    lookups: Lookups,
    *,
    seed: int,
    json_file: Path | None,
) -> None:
    """Recalibrate the thresholds of the model in `path` and show them; raises `ConfigError` for what cannot be done."""
    with progress("calibrating") as on_progress:
        promise, fidelity = promised.promise(), promised.asked()
        directory = ModelDirectory.open(path)
        _, held_out = samples_for(directory, data, data_option, seed=seed)
        each = read_profile(directory).hardware.threads if threads is None else threads
        if fidelity.cosine is not None or read_model(directory).about.task is Task.EMBED:
            _, near = certify(directory, held_out, fidelity, promise, threads=each)
            if near is not None and not near.kept:
                raise ConfigError(f"{path}: {summary(near)}: nothing was changed; rebuild it, or lower the fidelity")
            shown = rows_of(near) if near is not None else [("precision", FULL)]
            show_pairs(f"vectors for fidelity {fidelity}", shown)
            save(json_file, shown)
            return
        report = recalibrate(
            directory,
            held_out,
            fidelity=promise.fidelity,
            confidence=promise.confidence,
            threads=each,
            backend=backend,
            seed=seed,
            cache_bytes=promise.cache_bytes,
            aside=None if lookups is Lookups.AUTO else lookups is Lookups.ASIDE,
            answers=promise.answers,
            progress=on_progress,
        )
    show_pairs(f"learned caches for fidelity {promise.fidelity:g}", report.rows())
    save(json_file, report.rows())
