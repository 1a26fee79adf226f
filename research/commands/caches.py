"""`python -m research caches`: learned caches beside their baselines and without their parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from latebind.bench.report import write_plots
from latebind.cli.bench.options import Backend, DataOption, Fidelity, Page, Repository, Seed
from latebind.cli.console import JsonFile, console, progress, reporting, save, show
from latebind.cli.numbers import in_bytes
from latebind.cli.sources import load_rows, load_samples
from latebind.learned.promise import CACHE_BYTES, Promise
from latebind.learned.samples import Samples
from research.gati.caches.composition import BUDGETS
from research.gati.caches.contest import Plan
from research.gati.caches.plots import plots
from research.gati.caches.suite import Part, Result, Setting, Suite
from research.gati.caches.variants import KINDS, Lessons


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """The samples on which networks are trained, if any."""

    fit: Annotated[
        str | None,
        typer.Option(
            help="Samples to train networks on, and for traditional caches to keep, given as for `latebind build "
            "--data`."
        ),
    ] = None
    fit_option: Annotated[
        list[str] | None, typer.Option(help="An argument key=value for the function that --fit names; may be repeated.")
    ] = None

    def samples(self, seed: int) -> Samples | None:
        """Return the samples, or None if no option names any. Raises `ConfigError`."""
        return None if self.fit is None else load_samples(self.fit, self.fit_option, seed=seed)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """The fidelity that caches must keep, and how the rows are split to check it."""

    fidelity: Fidelity = 0.97
    confidence: Annotated[float, typer.Option(help="The confidence with which calibration must show that share.")] = (
        0.95
    )
    folds: Annotated[
        int,
        typer.Option(
            help="Split the rows into this many folds; the thresholds for each fold are calibrated on the others."
        ),
    ] = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Networks:
    """The kinds of networks to train for learned caches, behind which stages, and on how many rows."""

    kind: Annotated[
        list[str] | None,
        typer.Option(
            help=f"A kind of network to train, or bytes: the network in eight bits; may be repeated. Default: "
            f"{' '.join(KINDS)}."
        ),
    ] = None
    lessons: Annotated[int, typer.Option(help="How many rows each network is trained on, counting repetitions.")] = (
        100_000
    )
    explored: Annotated[
        Path | None,
        typer.Option(
            help="Keep trained networks in this folder, so that an interrupted run continues where it stopped."
        ),
    ] = None
    boundary: Annotated[
        list[int] | None,
        typer.Option(
            help="Train a learned cache behind this stage; may be repeated. Default: where the model has caches."
        ),
    ] = None

    def lessons_of(self, samples: Samples | None) -> Lessons | None:
        """Return the training settings, or None if there are no samples to train on."""
        if samples is None:
            return None
        return Lessons(samples, tuple(self.kind or KINDS), self.lessons, folder=self.explored)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The memory that caches may use."""

    stored: Annotated[int, typer.Option(help="How many rows a traditional cache keeps.")] = 10_000
    budget_mb: Annotated[
        list[float] | None,
        typer.Option(help="Megabytes of memory for learned caches, in comparisons by memory; may be repeated."),
    ] = None
    cache_mb: Annotated[
        float, typer.Option(help="Megabytes of memory for learned caches in all other comparisons.")
    ] = CACHE_BYTES / 1e6

    def budgets(self) -> tuple[int, ...]:
        """Return the memory budgets in bytes for which learned caches are composed. Raises `ConfigError`."""
        return BUDGETS if self.budget_mb is None else tuple(in_bytes("--budget-mb", mb, 1e6) for mb in self.budget_mb)


def caches(
    repository: Repository,
    *,
    model: Annotated[str, typer.Option(help="The base model that everything is compared with.")],
    data: Annotated[
        str,
        typer.Option(help="Rows with labels on which nothing was trained: an .npz file or package.module:function."),
    ],
    data_option: DataOption = None,
    smaller: Annotated[
        str | None, typer.Option(help="A smaller model of the folder, for the first step of a cascade.")
    ] = None,
    part: Annotated[
        list[Part] | None, typer.Option(help="Which comparison to run; may be repeated. Default: all.")
    ] = None,
    fitted: Fitted,
    promised: Promised,
    networks: Networks,
    kept: Kept,
    backend: Backend = None,
    seed: Seed = 0,
    page: Page = None,
    json_file: JsonFile = None,
) -> None:
    """Compare learned caches with fewer bits, smaller models, cascades and traditional caches, and ablate them.

    Latency is that of calls in this process, with batch 1 and one thread, without a server. Each part is printed and
    written as soon as it is done.

    Example: `python -m research caches models --model resnet56 --smaller resnet20 --part baselines --data
    examples.cifar10.data:unseen --data-option data=cifar10/`
    """
    parts = tuple(dict.fromkeys(part or Part))
    boundaries = tuple(networks.boundary or ())
    with reporting():
        promise = Promise(promised.fidelity, promised.confidence, in_bytes("--cache-mb", kept.cache_mb, 1e6))
        setting = Setting(repository, model, parts, smaller, backend, boundaries, kept.stored, kept.budgets())
        rows = _rows(data, data_option)
        lessons = networks.lessons_of(fitted.samples(seed))
        suite = Suite(setting, rows, Plan(promise, promised.folds, seed), lessons)
        text = (
            f"{model} on {suite.base.program.backend}: {len(suite.samples)} rows in {promised.folds} folds, "
            f"target {promise.fidelity:g} with {promise.confidence:.0%} confidence, batch 1, one thread, in process, "
            f"seed {seed}"
        )
        if lessons is not None:
            text += f", {networks.lessons} lessons a network"
        results: list[Result] = []
        for asked in parts:
            with progress(asked) as tell:
                results.append(suite.measure(asked, tell=tell))
            show(f"{results[-1].title}; {text}", results[-1].rows)
            _write(results, page, title=f"latebind: {model}, learned caches and their baselines", text=text)
            save(json_file, {"setting": text, "parts": {one.part: one.rows for one in results}})


def _rows(data: str, given: Sequence[str] | None) -> Samples:
    inputs, labels = load_rows(data, given)
    return Samples(
        {name: torch.from_numpy(array) for name, array in inputs.items()},
        None if labels is None else torch.from_numpy(labels),
    )


def _write(results: Sequence[Result], page: Path | None, *, title: str, text: str) -> None:
    if page is None:
        return
    write_plots(page, title, text, [one.rows for one in results], [plot for one in results for plot in plots(one)])
    console.print(f"page written to {page}")
