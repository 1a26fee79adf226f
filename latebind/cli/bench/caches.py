"""`latebind bench caches`: learned caches beside their baselines and without their parts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import torch
import typer

from latebind.bench.caches.composition import BUDGETS
from latebind.bench.caches.contest import Plan
from latebind.bench.caches.suite import Part, Result, Setting, Suite
from latebind.bench.caches.variants import KINDS, Lessons
from latebind.cli.bench.options import Backend, DataOption, Fidelity, Page, Repository, Seed
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.cli.sources import load_rows, load_samples
from latebind.learned.promise import CACHE_BYTES, Promise
from latebind.learned.samples import Samples


def caches(
    repository: Repository,
    model: Annotated[str, typer.Option(help="The base model.")],
    data: Annotated[str, typer.Option(help="Rows with labels that trained nothing: .npz or package.module:function.")],
    data_option: DataOption = None,
    smaller: Annotated[str | None, typer.Option(help="A smaller model of the folder, for cascades.")] = None,
    part: Annotated[list[Part] | None, typer.Option(help="What to compare; may be repeated. Default: all.")] = None,
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
    explored: Annotated[
        Path | None, typer.Option(help="Keep trained networks here: the same run goes on where it was broken off.")
    ] = None,
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

    Latency is of calls in this process, batch 1, one thread, without a server. Each part is printed and written as
    soon as it is done.

    Example: `latebind bench caches models --model resnet56 --smaller resnet20 --part baselines
    --data examples.cifar10.data:unseen --data-option data=cifar10/`
    """
    plan = Plan(Promise(fidelity, confidence, round(cache_mb * 1e6)), folds, seed)
    budgets = BUDGETS if budget_mb is None else tuple(round(mb * 1e6) for mb in budget_mb)
    parts = tuple(dict.fromkeys(part or Part))
    setting = Setting(repository, model, parts, smaller, backend, tuple(boundary or ()), stored, budgets)
    with reporting():
        inputs, labels = load_rows(data, data_option)
        given = None
        if fit is not None:
            samples, _ = load_samples(fit, fit_option, seed=seed)
            given = Lessons(samples, tuple(kind or KINDS), lessons, folder=explored)
        rows = Samples(
            {name: torch.from_numpy(array) for name, array in inputs.items()},
            None if labels is None else torch.from_numpy(labels),
        )
        suite = Suite(setting, rows, plan, given)
        text = (
            f"{model} on {suite.base.program.backend}: {len(suite.samples)} rows in {folds} folds, target {fidelity:g} "
            f"with {confidence:.0%} confidence, batch 1, one thread, in process, seed {seed}"
        )
        if given is not None:
            text += f", {lessons} lessons a network"
        results: list[Result] = []
        for asked in parts:
            with progress(asked) as tell:
                results.append(suite.measure(asked, tell=tell))
            show(f"{results[-1].title}; {text}", results[-1].rows)
            _write(results, page, title=f"latebind: {model}, learned caches and their baselines", text=text)
            save(json_file, {"setting": text, "parts": {one.part: one.rows for one in results}})


def _write(results: Sequence[Result], page: Path | None, *, title: str, text: str) -> None:
    if page is None:
        return
    from latebind.bench.caches.plots import write_caches_page

    write_caches_page(results, page, title=title, text=text)
    console.print(f"page written to {page}")
