"""`latebind bench caches`: learned caches beside their baselines and without their parts."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from latebind.bench.caches.composition import BUDGETS
from latebind.bench.caches.contest import Plan
from latebind.bench.caches.suite import PARTS, Report, Setting, run
from latebind.bench.caches.variants import KINDS, Lessons
from latebind.cli.bench.options import Backend, DataOption, Fidelity, Page, Repository, Seed
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.cli.sources import load_rows, load_samples, options
from latebind.learned.promise import CACHE_BYTES, Promise
from latebind.learned.samples import Samples


def caches(
    repository: Repository,
    model: Annotated[str, typer.Option(help="The base model.")],
    data: Annotated[str, typer.Option(help="Rows with labels that trained nothing: .npz or package.module:function.")],
    data_option: DataOption = None,
    smaller: Annotated[str | None, typer.Option(help="A smaller model of the folder, for cascades.")] = None,
    part: Annotated[list[str] | None, typer.Option(help=f"{', '.join(PARTS)}; may be repeated. Default: all.")] = None,
    fit: Annotated[
        str | None, typer.Option(help="Samples to train networks with and for caches to keep, as for build.")
    ] = None,
    fit_option: Annotated[list[str] | None, typer.Option(help="key=value for --fit; may be repeated.")] = None,
    fidelity: Fidelity = 0.97,
    confidence: Annotated[float, typer.Option(help="Confidence in it.")] = 0.95,
    folds: Annotated[int, typer.Option(help="Thresholds for each fold of the rows come from the others.")] = 5,
    kind: Annotated[
        list[str] | None, typer.Option(help=f"Networks to train; may be repeated. Default: {' '.join(KINDS)}.")
    ] = None,
    lessons: Annotated[
        int, typer.Option(help="Rows that each network is trained with, repetitions counted.")
    ] = 100_000,
    boundary: Annotated[
        list[int] | None, typer.Option(help="Train behind this stage; may be repeated. Default: where caches are.")
    ] = None,
    stored: Annotated[int, typer.Option(help="Rows that traditional caches keep.")] = 10_000,
    budget_mb: Annotated[list[float] | None, typer.Option(help="Memory for learned caches; may be repeated.")] = None,
    cache_mb: Annotated[float, typer.Option(help="Memory for learned caches elsewhere.")] = CACHE_BYTES / 1e6,
    backend: Backend = None,
    seed: Seed = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Learned caches beside fewer bits, smaller models, cascades and caches that compare; and without their parts.

    Latency is of calls in this process, batch 1, one thread, without a server.

    Example: `latebind bench caches models --model resnet56 --smaller resnet20 --part baselines
    --data examples.cifar10.data:unseen --data-option data=cifar10/`
    """
    plan = Plan(Promise(fidelity, confidence, round(cache_mb * 1e6)), folds, seed)
    budgets = BUDGETS if budget_mb is None else tuple(round(mb * 1e6) for mb in budget_mb)
    setting = Setting(repository, model, smaller, backend, tuple(boundary or ()), stored, budgets)
    with reporting(), progress("comparing") as tell:
        inputs, labels = load_rows(data, options(data_option or []))
        given = None
        if fit is not None:
            given = Lessons(load_samples(fit, options(fit_option or []), seed=seed)[0], tuple(kind or KINDS), lessons)
        samples = Samples(
            {name: torch.from_numpy(rows) for name, rows in inputs.items()},
            None if labels is None else torch.from_numpy(labels),
        )
        report = run(setting, samples, plan, parts=part or PARTS, lessons=given, tell=tell)
    text = (
        f"{model} on {report.backend}: {report.rows} rows in {folds} folds, target {fidelity:g} with {confidence:.0%} "
        f"confidence, batch 1, one thread, in process, seed {seed}"
    )
    if given is not None:
        text += f", {lessons} lessons a network"
    for title, rows in report.tables().items():
        show(f"{title}; {text}", rows)
    _write(report, page, title=f"latebind: {model}, learned caches and their baselines", text=text)
    save(json_file, {"setting": text, "tables": report.tables()})


def _write(report: Report, page: Path | None, *, title: str, text: str) -> None:
    if page is None:
        return
    from latebind.bench.caches.plots import write_caches_page  # noqa: PLC0415  (plotly is optional)

    write_caches_page(report, page, title=title, text=text)
    console.print(f"page written to {page}")
