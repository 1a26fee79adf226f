"""`python -m research engine`: what leaving early is worth in the engine alone."""

from typing import Annotated

import typer

from latebind.cli.bench.options import Backend, Conditions, Subject, Tuning
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from research.gati import engine as engine_bench


def engine(
    subject: Subject,
    *,
    backend: Backend = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="How many rows a call has; may be repeated. Default: 1, 2, 4 and 8.")
    ] = None,
    tuning: Tuning,
    conditions: Conditions,
    json_file: JsonFile = None,
) -> None:
    """Measure what leaving early is worth in the live engine without a door: by rows of a call, and in throughput.

    Example: `python -m research engine models --model resnet56 --data examples.cifar10.data:unseen --data-option
    data=cifar10/ --folds 5`
    """
    setting = conditions.setting(backend)
    with reporting(), progress("asking two engines") as tell:
        batches = batch or engine_bench.BATCHES
        report = engine_bench.run(
            subject.load(), setting=setting, folds=tuning.wanted(), batches=batches, progress=tell
        )
    kind = f"{tuning.folds} folds, target {tuning.fidelity:g}" if tuning.folds else "calibrated as it is"
    show(f"{subject.model}: latency of rows in the engine, closed loop, {kind}, seed {conditions.seed}", report.rows())
    show("throughput with more waiting than a batch takes", report.throughput_rows())
    console.print(f"times more, each side with its better policy   {report.throughput()}")
    save(json_file, {"latency": report.rows(), "throughput": report.throughput_rows()})
