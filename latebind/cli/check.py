"""`latebind check`: what `latebind serve` would serve with the same options, and what is wrong. Starts no server."""

import importlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.commands import what_to_install
from latebind.cli.console import Row, console, in_order, reporting, save, show_tables
from latebind.cli.options import JsonFile, Repository
from latebind.cli.serve import check_policies
from latebind.cli.settings import SETTINGS, Given, check_machine
from latebind.domain.config import ServeConfig
from latebind.domain.errors import ConfigError, LatebindError
from latebind.domain.model import ModelSpec
from latebind.domain.split import BESIDE, SHADOW, public_name
from latebind.engine.cores import fitted
from latebind.engine.order import with_queries
from latebind.engine.preprocessors import open_preprocessor
from latebind.learned.metadata import read_accuracies, read_caches, with_caches
from latebind.preprocessing.settings import reads_as
from latebind.program.device import IMPORTS, NO_TORCH, OPENVINO, has_torch, without_torch
from latebind.program.metadata import read_model, read_profile, read_texts
from latebind.queries.file.definition import ENDING, read_query
from latebind.repository.directory import SEQUENCE, STAGES, ModelDirectory, read_manifest
from latebind.repository.listing import Selection, Serving
from latebind.repository.mirror import open_selection
from latebind.served import span_export
from latebind.server.access import Security
from latebind.server.limits import Limits, too_large_a_row

FINE, FAULTY = "fine", "faulty"
STATE, NOTE = "state", "note"


def check(
    repository: Repository,
    *,
    model: Annotated[
        list[str] | None, typer.Option(help="Check this model or query; may be repeated. Default: all.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="TOML, as `serve` takes it; options win.")] = None,
    json_file: JsonFile = None,
    given: Annotated[Given, SETTINGS],
) -> None:
    """Show what would be served with the options of `latebind serve`, and what is wrong. Starts no server.

    Every file is compared with its manifest. The tables show the versions that would answer, with their shares where
    there are several; files that are missing or faulty; packages that are not installed; and with `--memory` what slots
    leave of it and which models do not fit. What only a running model shows, such as the memory of its batches, is not
    included.

    Exit code 1 where something is faulty, 2 where the options are.

    Examples:

    * `latebind check models`
    * `latebind check models --config latebind.toml --memory 2GiB`
    * `latebind check models --split resnet=1:90,2:10 --json found.json`
    """
    with reporting():
        settings, engine_keys = SETTINGS.read(config, given)
        check_policies(settings)
        check_machine(settings.engine, None)
        Security.by(settings.server)
        selection = open_selection(repository, model or (), settings.repository)
        beside = [name for split in selection.splits.values() for name in split.served.values()]
        names = dict.fromkeys([*(model or ()), *selection.names(), *beside])
        if not names:
            selection.first()  # raises an error that says what to do
        found = _found(selection, names, settings, engine_keys)
    every = sorted({*found.serving.names, *found.wrong})
    files = {name: file for name in every if (file := selection.place / f"{name}{ENDING}").is_file()}
    queries = [_query(name, file, found) for name, file in files.items()]
    models = [_model(name, found) for name in every if name not in files]
    tables = {
        f"what would be served from {repository}": models,
        "queries": queries,
        "the server": [*_packages(settings), *_memory(found, [row for row in queries if row[STATE] == FINE], settings)],
    }
    show_tables(tables)
    for note in selection.passed_over():
        console.print(note, markup=False)
    faults = [row for rows in tables.values() for row in rows if row[STATE] == FAULTY]
    console.print(f"faulty: {len(faults)}" if faults else "nothing is wrong", highlight=False)
    save(json_file, dict(zip(("models", "queries", "server"), tables.values(), strict=True)))
    if faults:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Whole:
    """A model in which nothing was found wrong. Its specification has the name that it is served by."""

    spec: ModelSpec
    directory: ModelDirectory
    backend: str
    weights: int  # bytes
    note: str  # what is worth knowing anyway


@dataclass(frozen=True, slots=True)
class Found:
    """What was found of a selection: what is served, the intact models, and by name what is wrong with the rest."""

    selection: Selection
    serving: Serving
    whole: Mapping[str, Whole]
    wrong: Mapping[str, str]


def _found(selection: Selection, names: Iterable[str], settings: ServeConfig, engine_keys: Collection[str]) -> Found:
    """Look for models and queries by these names, and open all models."""
    serving, whole, wrong = Serving(), dict[str, Whole](), dict[str, str]()
    for name in names:
        try:
            serving = serving.with_(selection.find(name))
        except (LatebindError, OSError) as error:
            wrong[name] = selection.explain(error)
    texts = False
    with suppress(LatebindError, OSError):
        texts = read_texts([*serving.models.values()])
    settings = fitted(settings, engine_keys, texts=texts)
    for name, path in serving.models.items():
        try:
            found = _opened(path, settings)
            if public_name(name) in selection.splits:  # as in an engine: one version may be a copy of another
                found = replace(found, spec=replace(found.spec, name=name, version=path.name))
            whole[name] = found
        except (LatebindError, OSError) as error:
            wrong[name] = selection.explain(error)
    return Found(selection, serving, whole, wrong)


def _opened(path: Path, settings: ServeConfig) -> Whole:
    """Read all of a verified model that can be read without running it. Raises the error that it has."""
    directory = ModelDirectory(path, read_manifest(path).files)
    model, profile, caches = read_model(directory), read_profile(directory), read_caches(directory)
    engine = settings.engine
    backend = engine.backend or model.backend
    if SEQUENCE in directory.files and not has_torch():
        raise ConfigError(f"{path} is a sequence model, which torch decodes, and {NO_TORCH}")
    if not has_torch() and not (backend in OPENVINO and directory.names(STAGES)):
        raise ConfigError(without_torch(path, backend))
    if backend in OPENVINO and find_spec(IMPORTS[backend]) is None:
        raise ConfigError(what_to_install(ModuleNotFoundError(name=IMPORTS[backend])) or "")
    if model.about.raw:
        open_preprocessor(directory, model.about)
    spec = model.spec()
    if engine.exits:
        spec, _ = with_caches(spec, profile.costs(), caches, floor=engine.floor)
    notes = [too_large_a_row(spec.inputs, Limits.by(settings.server))]
    if not profile.matches_this_machine(threads=engine.threads, backend=backend):
        notes.append("it was measured on another machine, or with other threads: each start measures it again")
    return Whole(spec, directory, backend, profile.weight_bytes, "; ".join(filter(None, notes)))


def _model(name: str, found: Found) -> Row:
    """Return the row of a model, or of a name for which nothing can be served."""
    row: Row = dict.fromkeys(("model", "version", "answers", STATE, "backend", "stages", "weights MB", NOTE), "")
    model, _, number = name.partition(BESIDE)
    split, whole = found.selection.splits.get(model), found.whole.get(name)
    version = number or (split.main if split else "")
    row |= {"model": model, "version": version, STATE: FAULTY, NOTE: found.wrong.get(name, "")}
    if split is not None:
        row["answers"] = f"{split.shares[version]:g} %" if version in split.shares else SHADOW
    if whole is None:
        return row
    return row | {
        "version": whole.spec.version,
        STATE: FINE,
        "backend": whole.backend,
        "stages": whole.spec.stages,
        "weights MB": f"{whole.weights / 1e6:.2f}",
        NOTE: whole.note,
    }


def _query(name: str, file: Path, found: Found) -> Row:
    """Return the row of a query over the intact models."""
    row: Row = {"query": name, "models": "", "steps": "", STATE: FAULTY, NOTE: found.wrong.get(name, "")}
    if name in found.wrong:
        return row
    needed = found.serving.queries[name].models
    row["models"] = ", ".join(needed)
    if missing := [model for model in needed if model in found.wrong]:
        return row | {NOTE: f"it needs {', '.join(missing)}, which cannot be served"}
    mains = {one.spec.name: one for name, one in found.whole.items() if BESIDE not in name}
    specs = {name: one.spec for name, one in mains.items()}
    readers = {name: reads_as(one.directory) for name, one in mains.items()}
    try:
        query = read_query(file, specs, read_accuracies([one.directory for one in mains.values()]), readers).query
    except (LatebindError, OSError) as error:
        return row | {NOTE: found.selection.explain(error)}
    return row | {"steps": in_order(query.spec.steps), STATE: FINE}


def _packages(settings: ServeConfig) -> Iterator[Row]:
    """Yield rows for packages that the options need and that are not installed."""
    if settings.server.grpc_port is not None:
        yield from _failing("gRPC", lambda: importlib.import_module("latebind.server.rpc.messages"))
    if settings.observability.otlp:
        yield from _failing("OpenTelemetry", span_export)


def _memory(found: Found, queries: Sequence[Row], settings: ServeConfig) -> Iterator[Row]:
    """Yield what slots leave of `--memory`, and which models do not fit into that."""
    files = [found.serving.queries[str(row["query"])].path for row in queries]
    try:
        served = with_queries([*found.whole.values()], files, settings.engine.slots, memory=settings.residency.budget)
        budget = settings.residency.budget and served.left_of(settings.residency.budget)
    except LatebindError as error:
        yield {"part": "memory", STATE: FAULTY, NOTE: found.selection.explain(error)}
        return
    weights = sum(one.weights for one in found.whole.values())
    note = f"weights {weights / 1e6:.1f} MB; slots {served.bytes / 1e6:.1f} MB once all {served.slots} of each are used"
    if not budget:
        yield {"part": "memory", STATE: FINE, NOTE: note}
        return
    yield {
        "part": "memory",
        STATE: FINE,
        NOTE: f"{note}; {budget / 1e6:.1f} MB of --memory are left for models and batches",
    }
    for one in found.whole.values():
        if one.weights > budget:
            # However the weights are distributed, at least one piece has the mean of all.
            never = one.weights > budget * one.spec.stages
            how = (
                "a stage of it does not fit: give more --memory, or build it with more stages (--min-stage-ms 0)"
                if never
                else "it is loaded stage by stage, again for each batch: give more --memory or fewer --slots"
            )
            note = f"{one.spec.name} has {one.weights / 1e6:.1f} MB of weights: {how}"
            yield {"part": "memory", STATE: FAULTY if never else FINE, NOTE: note}


def _failing(part: str, call: Callable[[], object]) -> Iterator[Row]:
    """Yield a row where `call` raises a `ConfigError`."""
    try:
        call()
    except ConfigError as error:
        yield {"part": part, STATE: FAULTY, NOTE: str(error)}
