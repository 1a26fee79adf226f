"""`latebind models`: what is in a folder of models, or how those of a running server fare."""

import json
import time
from collections.abc import Mapping, Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import typer

from latebind.batching.costs import Estimate
from latebind.cli.console import Row, console, in_order, milliseconds, percent, reporting, save, show
from latebind.cli.options import JsonFile
from latebind.domain.costs import ModelCosts
from latebind.domain.errors import ConfigError, QueryError
from latebind.domain.model import ModelSpec
from latebind.learned.stored import read_accuracies, read_accuracy, read_caches
from latebind.program.stored import read_model, read_profile
from latebind.queries.file.definition import model_names, read_query
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import Selection, find_queries, sort_out
from latebind.server.access import read_token

MACHINE = "profiled on"
WEIGHTS = "weights MB"
PATIENCE = 10.0  # seconds


def models(
    repository: Annotated[
        Path | None, typer.Argument(help="A folder of models and queries, or one model directory.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--stages", help="Show every stage of every model.")] = False,
    url: Annotated[str | None, typer.Option(help="Ask this running server instead, as http://127.0.0.1:8000.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="A file with the token that it wants.")] = None,
    json_file: JsonFile = None,
) -> None:
    """List models: stages, backend, size, latency, learned caches and what they promise. Verifies every file.

    Queries over them are listed too, with their steps; exit code 2 where something is not right, and what is wrong with
    it.
    With `--url` it lists what a running server has answered, the figures of its `/v2/models/stats`.

    Examples:

    * `latebind models models --stages`
    * `latebind models --url http://127.0.0.1:8000`
    """
    if url is not None:
        with reporting():
            statistics = read_statistics(url, token_file)
        show(f"models of {url}, since their engine began", [_answered(model) for model in statistics])
        save(json_file, {"model_stats": statistics})
        return
    if repository is None:
        raise typer.BadParameter("name a folder of models, or a server by --url")
    rows: list[Row] = []
    stages: list[Row] = []
    with reporting():
        directories, wrong = sort_out(repository)
        for directory in directories:
            rows.append(_model(directory))
            stages += _stages(directory)
        queries = _queries(find_queries(repository), directories, wrong)
        passed_over = Selection(repository).passed_over()
    if rows:
        _show_models(f"models in {repository}", rows)
    if wrong:
        show("unusable", [{"model": name, "wrong": reason} for name, reason in wrong.items()])
    for told in passed_over:
        console.print(told, markup=False)
    if verbose:
        show("stages", stages)
    elif stages:
        console.print("every stage: --stages")
    if queries:
        show("queries", queries)
    save(json_file, {"models": rows, "stages": stages, "queries": queries, "wrong": wrong})
    if wrong or any(query["wrong"] for query in queries):
        raise typer.Exit(2)


def _show_models(title: str, rows: Sequence[Row]) -> None:
    """Show models; the machine is told once if it is the same for all, and what all weights take if there are some."""
    machines = {str(row[MACHINE]) for row in rows}
    alike = len(machines) == 1
    show(title, [{key: value for key, value in row.items() if key != MACHINE} for row in rows] if alike else rows)
    if alike:
        console.print(f"{MACHINE} {machines.pop()}", highlight=False)
    if len(rows) > 1:
        whole = sum(float(str(row[WEIGHTS])) for row in rows)
        console.print(f"weights of all {len(rows)}: {whole:.0f} MB", highlight=False)


def _model(directory: ModelDirectory) -> Row:
    model, profile, caches = read_model(directory), read_profile(directory), read_caches(directory)
    costs = profile.costs()
    return {
        "model": model.name,
        "version": model.version,
        "stages": len(costs.stages),
        "backend": model.backend,
        "max batch": model.max_batch,
        "ms at batch 1": milliseconds(alone(model.spec(), costs)),
        WEIGHTS: f"{costs.weight_bytes / 1e6:.2f}",
        "exits after": " ".join(str(cache.stage) for cache in caches.lookups) if caches and caches.lookups else "none",
        "fidelity": f"at least {caches.lower:.3f}" if caches and caches.lookups else "",
        "accuracy": str(read_accuracy(directory) or ""),
        MACHINE: f"{profile.hardware.cpu}, threads: {profile.hardware.threads}",
    }


def _stages(directory: ModelDirectory) -> list[Row]:
    model, profile, caches = read_model(directory), read_profile(directory), read_caches(directory)
    hits = {cache.stage: cache for cache in caches.lookups} if caches else {}
    return [
        {
            "model": model.name,
            "stage": number,
            "ms at batch 1": milliseconds(curve.at(1)),
            f"ms at batch {model.max_batch}": milliseconds(curve.at(model.max_batch)),
            "leave after it": percent(hits[number].hit_rate) if number in hits else "",
        }
        for number, curve in enumerate(profile.costs().stages)
    ]


def _queries(files: Sequence[Path], directories: Sequence[ModelDirectory], wrong: Mapping[str, str]) -> list[Row]:
    specs = {spec.name: spec for spec in (read_model(directory).spec() for directory in directories)}
    accuracies = read_accuracies(directories)
    return [_query(file, specs, accuracies, wrong) for file in files]


def _query(
    file: Path, specs: Mapping[str, ModelSpec], accuracies: Mapping[str, float], wrong: Mapping[str, str]
) -> Row:
    try:
        missing = [model for model in model_names(file) if model in wrong]
        if missing:
            raise QueryError(f"{file} needs {' and '.join(missing)}, which is unusable")
        query = read_query(file, specs, accuracies).query
    except QueryError as error:
        return {"query": file.name, "steps": "", "models": "", "deadline": "", "planner": "", "wrong": str(error)}
    return {
        "query": query.name,
        "steps": in_order(query.spec.steps),
        "models": "; ".join(f"{step.name}: {', '.join(step.models)}" for step in query.spec.steps),
        "deadline": f"{query.deadline * 1e3:g} ms" if query.deadline else "the server's",
        "planner": query.planner.name if query.planner.replan else f"{query.planner.name}, once",
        "wrong": "",
    }


def alone(spec: ModelSpec, costs: ModelCosts) -> float:
    """Return the seconds that one request takes by itself; for a sequence model, one of average length."""
    estimate = Estimate(spec, costs)
    return estimate.whole(1, estimate.mean_outputs, estimate.mean_outputs)


def read_statistics(url: str, token_file: Path | None = None) -> list[Mapping[str, Any]]:
    """Ask the server at `url` for the statistics of all models.

    Raises `ConfigError` if it does not return them, and for a file that holds no token.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url is {url!r}: give one such as http://127.0.0.1:8000")
    token = {} if token_file is None else {"Authorization": f"Bearer {read_token(token_file)}"}
    try:
        with urlopen(Request(url.rstrip("/") + "/v2/models/stats", headers=token), timeout=PATIENCE) as reply:  # noqa: S310
            found: list[Mapping[str, Any]] = json.load(reply)["model_stats"]
    except HTTPError as error:
        raise ConfigError(f"{url} answers {error.code}: {error.read(1000).decode(errors='replace')}") from None
    except OSError as error:
        why = error.reason if isinstance(error, URLError) else error
        raise ConfigError(f"{url} does not answer ({why}): does `latebind serve` run there?") from None
    except (HTTPException, ValueError, KeyError, TypeError):
        said = "answers with something else than statistics: give the address behind `latebind serves at`, not gRPC's"
        raise ConfigError(f"{url} {said}") from None
    return found


def _answered(model: Mapping[str, Any]) -> Row:
    """Return the figures of one model since the server began; times in milliseconds are those of answered requests."""
    stats, batches = model["inference_stats"], model["execution_count"]
    last = model["last_inference"]
    return {
        "model": model["name"],
        "version": model["version"],
        "answered": stats["success"]["count"],
        "not answered": stats["fail"]["count"],
        "mean ms": _milliseconds(stats["success"]),
        "waiting": _milliseconds(stats["queue"]),
        "with a worker": _milliseconds(stats["compute_infer"]),
        "batches": batches,
        "requests a batch": f"{model['inference_count'] / batches:.2f}" if batches else "",
        "last": f"{max(0.0, time.time() - last / 1e3):.0f} s ago" if last else "never",
    }


def _milliseconds(figures: Mapping[str, int]) -> str:
    return f"{figures['ns'] / figures['count'] / 1e6:.3f}" if figures["count"] else ""
