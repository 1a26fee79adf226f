"""`latebind models` and `latebind versions`: what is in a folder of models, and which learned caches each uses."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Annotated

import typer

from latebind.adaptation.controller import BUILT, FULL_DEPTH
from latebind.adaptation.versions import Versions, versions_folder
from latebind.batching.costs import Estimate
from latebind.cli.console import Row, console, in_order, milliseconds, percent, reporting, save, show
from latebind.cli.options import JsonFile
from latebind.domain.errors import ConfigError, QueryError, RepositoryError
from latebind.learned.metadata import StoredCaches, read_accuracies, read_accuracy, read_caches, read_nearness
from latebind.preprocessing.settings import reads_as
from latebind.program.metadata import profiled_sizes, read_model, read_profile
from latebind.queries.file.definition import model_names, read_query
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Selection, find_models, find_queries, sort_out

MACHINE = "profiled on"
WEIGHTS = "weights MB"
COLUMNS = ("version", "in use", "made", "because", "fidelity", "levels", "mean ms", "made for")


def models(
    repository: Annotated[Path, typer.Argument(help="A folder of models and queries, or one model directory.")],
    verbose: Annotated[bool, typer.Option("--stages", help="Show every stage of every model.")] = False,
    json_file: JsonFile = None,
) -> None:
    """List models: stages, backend, size, latency, learned caches and what they promise. Verifies every file.

    Queries over them are listed too, with their steps. If something is wrong, it is reported, and the exit code is 2.
    Statistics of a running server are at its `/v2/models/stats` and `/dashboard`.

    Example: `latebind models models --stages`
    """
    with reporting():
        directories, wrong = sort_out(repository)
        rows = [_model(directory) for directory in directories]
        stages = [row for directory in directories for row in _stages(directory)]
        lengths = [row for directory in directories for row in _lengths(directory)]
        curves = [row for directory in directories for row in _curve(directory)]
        queries = _queries(find_queries(repository), directories, wrong)
        passed_over = Selection(repository).passed_over()
    if rows:
        # The machine is printed once if it is the same for all, and the sum of all weights if there are several.
        machines = {str(row[MACHINE]) for row in rows}
        alike = [{key: value for key, value in row.items() if key != MACHINE} for row in rows]
        show(f"models in {repository}", alike if len(machines) == 1 else rows)
        if len(machines) == 1:
            console.print(f"{MACHINE} {machines.pop()}", highlight=False)
        if len(rows) > 1:
            whole = sum(float(str(row[WEIGHTS])) for row in rows)
            console.print(f"weights of all {len(rows)}: {whole:.0f} MB", highlight=False)
    if wrong:
        show("unusable", [{"model": name, "wrong": reason} for name, reason in wrong.items()])
    for note in passed_over:
        console.print(note, markup=False)
    if lengths:
        show("time by row length", lengths)
    if verbose:
        show("stages", stages)
        if curves:
            show("operating curves, of `latebind serve --floor`", curves)
    elif stages:
        console.print("every stage, and every level of fidelity: --stages" if curves else "every stage: --stages")
    if queries:
        show("queries", queries)
    tables = {"models": rows, "lengths": lengths, "stages": stages, "curves": curves, "queries": queries}
    save(json_file, tables | {"wrong": wrong})
    if wrong or any(query["wrong"] for query in queries):
        raise typer.Exit(2)


def _model(directory: ModelDirectory) -> Row:
    model, profile, caches = read_model(directory), read_profile(directory), read_caches(directory)
    costs = profile.costs()
    spec = model.spec()
    estimate = Estimate(spec, costs)  # of one request by itself; of a sequence model, one of average length
    whole = milliseconds(estimate.whole(1, estimate.mean_outputs, estimate.mean_outputs))
    if spec.dims and not spec.kinds:
        ends = prod([dim.least for dim in spec.dims]), prod([dim.most for dim in spec.dims])
        whole = " to ".join([milliseconds(costs.remaining(0, 1, length)) for length in ends])
    return {
        "model": model.name,
        "version": model.version,
        "stages": len(costs.stages),
        "backend": model.backend,
        "max batch": model.max_batch,
        "ms at batch 1": whole,
        "task": spec.about.task or "",
        "takes": ", ".join([each.name + " (optional)" * each.optional for each in spec.about.raw]),
        "labels": len(spec.about.labels) or "",
        "rows": ", ".join([f"{dim.name}={dim.written()}" for dim in spec.dims]),
        "a batch": "" if not spec.dims else "of one size" if spec.one_size else "packed" if spec.packs else "padded",
        WEIGHTS: f"{costs.weight_bytes / 1e6:.2f}",
        "exits after": " ".join(str(cache.stage) for cache in caches.lookups) if caches and caches.lookups else "none",
        "fidelity": _promised(directory, caches),
        "accuracy": str(read_accuracy(directory) or ""),
        MACHINE: f"{profile.hardware.cpu}, threads: {profile.hardware.threads}",
    }


def _promised(directory: ModelDirectory, caches: StoredCaches | None) -> str:
    """Return the promise for a model's answers, "" if they are its network's own in full precision."""
    if caches and (caches.lookups or caches.shows_network):
        return f"at least {caches.lower:.3f}"
    near = read_nearness(directory)
    return "" if near is None else f"at least {near.lower:.3f} within cosine {near.cosine:g}"


def _stages(directory: ModelDirectory) -> list[Row]:
    model, profile, caches = read_model(directory), read_profile(directory), read_caches(directory)
    hits = {cache.stage: cache for cache in caches.lookups} if caches else {}
    length = prod([dim.most for dim in model.dims])
    return [
        {
            "model": model.name,
            "stage": number,
            "length": length if model.dims else "",
            "ms at batch 1": milliseconds(grid.at(1, length)),
            f"ms at batch {model.max_batch}": milliseconds(grid.at(model.max_batch, length)),
            "leave after it": percent(hits[number].hit_rate) if number in hits else "",
        }
        for number, grid in enumerate(profile.costs().stages)
    ]


def _curve(directory: ModelDirectory) -> list[Row]:
    """Return the levels among which the load chooses, the highest first."""
    caches = read_caches(directory)
    return [
        {
            "model": read_model(directory).name,
            "fidelity": f"{level.target:g}",
            "measured": f"{level.fidelity:.4f}",
            "at least, at all levels together": f"{level.lower:.4f}",
            "ms at batch 1": milliseconds(level.seconds),
            "leave early": percent(sum(level.hit_rates.values())),
        }
        for level in (caches.levels if caches else ())
    ]


def _lengths(directory: ModelDirectory) -> list[Row]:
    """Return the time of rows of each measured length, for a model whose rows differ in size."""
    model, costs = read_model(directory), read_profile(directory).costs()
    most = model.max_batch
    if not model.dims or model.kinds:
        return []
    several = profiled_sizes(model.dims) if len(model.dims) > 1 else ()
    sizes = {prod(each.values()): " ".join(f"{name}={size}" for name, size in each.items()) for each in several}
    return [
        {
            "model": model.name,
            "length": length,
            "as": sizes.get(length, ""),
            "ms at batch 1": milliseconds(costs.remaining(0, 1, length)),
            f"ms at batch {most}": milliseconds(costs.remaining(0, most, length)),
            "rows a second": f"{most / max(costs.remaining(0, most, length), 1e-9):.0f}",
        }
        for length in sorted({length for grid in costs.stages for length in grid.lengths})
    ]


def _queries(files: Sequence[Path], directories: Sequence[ModelDirectory], wrong: Mapping[str, str]) -> list[Row]:
    specs = {spec.name: spec for spec in (read_model(directory).spec() for directory in directories)}
    readers = {spec.name: reads_as(directory) for spec, directory in zip(specs.values(), directories, strict=True)}
    accuracies, rows = read_accuracies(directories), list[Row]()
    for file in files:
        row: Row = dict.fromkeys(("query", "takes", "steps", "models", "deadline", "planner", "wrong"), "")
        try:
            if missing := [model for model in model_names(file) if model in wrong]:
                raise QueryError(f"{file} needs {' and '.join(missing)}, which is unusable")
            query = read_query(file, specs, accuracies, readers).query
        except QueryError as error:
            rows.append(row | {"query": file.name, "wrong": str(error)})
            continue
        row |= {"query": query.name, "steps": in_order(query.spec.steps)}
        row["takes"] = ", ".join([f"{one.name} ({one.media})" for one in query.spec.about.raw])
        row["models"] = "; ".join(f"{step.name}: {', '.join(step.models)}" for step in query.spec.steps)
        row["deadline"] = f"{query.deadline * 1e3:g} ms" if query.deadline else "the server's"
        row["planner"] = query.planner.name if query.planner.replan else f"{query.planner.name}, once"
        rows.append(row)
    return rows


def versions(
    repository: Annotated[Path, typer.Argument(help="A folder of models, or one model directory.")],
    model: Annotated[str | None, typer.Option(help="The model in the folder.")] = None,
    use: Annotated[
        str, typer.Option(help="Use this version from now on: its number, `built`, or `none` for no exits.")
    ] = "",
    adapted: Annotated[Path | None, typer.Option(help="Folder of versions, if `serve` was given one.")] = None,
    json_file: JsonFile = None,
) -> None:
    """List the versions of a model's learned caches that `serve --adapt` made, or switch to one with `--use`.

    A server that runs with `--adapt` switches within a second, others when they start.

    Examples:

    * `latebind versions models --model resnet56`
    * `latebind versions models --model resnet56 --use built`
    """
    with reporting():
        found = find_models(repository, [model] if model else None)
        if len(found) != 1:
            raise ConfigError(f"{repository} holds {len(found)} models: name one with --model")
        directory = ModelDirectory.open(found[0])
        if read_caches(directory) is None:
            raise ConfigError(f"{directory.path} has no learned caches: build it with --data first")
        store = Versions(versions_folder(directory.path, str(adapted or "")), directory)
        if use:
            store.make_current(use, by_hand=True)
        current = store.current()
        made = [_version(store, name) for name in store.names()]
        always: list[Row] = [
            {"version": BUILT, "because": "what build made"},
            {"version": FULL_DEPTH, "because": "no exits"},
        ]
        rows = [{column: row.get(column, "") for column in COLUMNS} for row in [*always, *made]]
        for row in rows:
            row["in use"] = "*" if row["version"] == current else ""
        show(f"learned caches of {directory.path}; * is in use", rows)
        if not made:
            console.print("serve with --adapt to adapt the learned caches to the traffic")
        save(json_file, {"current": current, "versions": rows[len(always) :]})


def _version(store: Versions, name: str) -> Row:
    try:
        about = store.version(name)
    except RepositoryError:
        return {"version": name, "because": "belongs to other caches"}
    often = sorted(about.mix.items(), key=lambda item: -item[1])[:3]
    return {
        "version": name,
        "made": f"{datetime.fromtimestamp(about.made):%Y-%m-%d %H:%M:%S}",
        "because": about.reason,
        "fidelity": f"{about.fidelity:.3f}, at least {about.lower:.3f} on {about.rows}",
        "levels": " ".join([f"{level.fidelity:g}" for level in about.levels]),
        "mean ms": milliseconds(sum(about.seconds[answer] * share for answer, share in about.mix.items())),
        "made for": ", ".join(f"class {answer} {share:.0%}" for answer, share in often),
    }
