"""`latebind models`: what is in a folder of models."""

from pathlib import Path
from typing import Annotated

import typer

from latebind.batching.estimate import Estimate
from latebind.cli.console import JsonFile, console, milliseconds, percent, reporting, save, show
from latebind.domain.costs import ModelCosts
from latebind.domain.model import ModelSpec
from latebind.learned.accuracy import read_accuracy
from latebind.learned.stored import read_caches
from latebind.program.stored import read_model, read_profile
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models

app = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False)


@app.command()
def models(
    repository: Annotated[Path, typer.Argument(help="A folder of models, or one model directory.")],
    verbose: Annotated[bool, typer.Option("--stages", help="Show every stage of every model.")] = False,
    json_file: JsonFile = None,
) -> None:
    """List models: stages, backend, size, latency, learned caches and what they promise. Verifies every file.

    Example: `latebind models models --stages`
    """
    rows: list[dict[str, object]] = []
    stages: list[dict[str, object]] = []
    with reporting():
        for path in find_models(repository):
            directory = ModelDirectory.open(path)
            model, profile, caches = read_model(directory), read_profile(directory), read_caches(directory)
            costs = profile.costs()
            rows.append(
                {
                    "model": model.name,
                    "version": model.version,
                    "stages": len(costs.stages),
                    "backend": model.backend,
                    "max batch": model.max_batch,
                    "ms at batch 1": milliseconds(alone(model.spec(), costs)),
                    "weights MB": f"{costs.weight_bytes / 1e6:.2f}",
                    "exits behind": " ".join(str(cache.stage) for cache in caches.lookups) if caches else "none",
                    "fidelity": f"at least {caches.lower:.3f}" if caches and caches.lookups else "the same",
                    "accuracy": str(read_accuracy(directory) or ""),
                    "profiled on": f"{profile.hardware.cpu}, {profile.hardware.threads} threads",
                }
            )
            hits = {cache.stage: cache for cache in caches.lookups} if caches else {}
            stages += [
                {
                    "model": model.name,
                    "stage": number,
                    "ms at batch 1": milliseconds(curve.at(1)),
                    f"ms at batch {model.max_batch}": milliseconds(curve.at(model.max_batch)),
                    "leave behind it": percent(hits[number].hit_rate) if number in hits else "",
                }
                for number, curve in enumerate(costs.stages)
            ]
    show(f"models in {repository}", rows)
    if verbose:
        show("stages", stages)
    elif stages:
        console.print("every stage: --stages")
    save(json_file, {"models": rows, "stages": stages})


def alone(spec: ModelSpec, costs: ModelCosts) -> float:
    """Return the seconds that a request takes by itself; of a sequence model one of average length."""
    estimate = Estimate(spec, costs)
    return estimate.whole(1, estimate.mean_outputs, estimate.mean_outputs)
