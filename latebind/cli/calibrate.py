"""`latebind calibrate`: new thresholds for learned caches, on data of your own, without training."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.build import Promised
from latebind.cli.console import progress, reporting, save, show_pairs
from latebind.cli.options import DataOption, JsonFile, Seed, Threads
from latebind.cli.sources import load_samples
from latebind.learned.build import recalibrate
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models


class Lookups(StrEnum):
    """In line between two stages, aside on another core while the network goes on, or what measures faster."""

    AUTO = "auto"
    IN_LINE = "in-line"
    ASIDE = "aside"


def calibrate(
    repository: Annotated[Path, typer.Argument(help="A folder of models.")],
    *,
    model: Annotated[str, typer.Option(help="The model in the folder.")],
    data: Annotated[str, typer.Option(help="As for `latebind build`; only the part to calibrate is used.")],
    data_option: DataOption = None,
    promised: Promised,
    backend: Annotated[str | None, typer.Option(help="The backend that will serve, if not the one built for.")] = None,
    threads: Threads = 1,
    lookups: Annotated[
        Lookups,
        typer.Option(
            help="Ask learned caches in line, between two stages, or aside, on a core of their own while the network "
            "goes on. auto measures both and takes aside if it is 5 % faster."
        ),
    ] = Lookups.AUTO,
    seed: Seed = 0,
    json_file: JsonFile = None,
) -> None:
    """Choose the thresholds of a model's learned caches anew: another fidelity, or samples nearer to your traffic.

    Example: `latebind calibrate models --model resnet56 --data recent.npz --fidelity 0.99`
    """
    with reporting(), progress("calibrating") as tell:
        promise = promised.promise()
        (path,) = find_models(repository, [model])
        _, held_out = load_samples(data, data_option, seed=seed)
        report = recalibrate(
            ModelDirectory.open(path),
            held_out,
            fidelity=promise.fidelity,
            confidence=promise.confidence,
            threads=threads,
            backend=backend,
            seed=seed,
            cache_bytes=promise.cache_bytes,
            aside=None if lookups is Lookups.AUTO else lookups is Lookups.ASIDE,
            answers=promise.answers,
            progress=tell,
        )
    show_pairs(f"learned caches for fidelity {promise.fidelity:g}", report.rows())
    save(json_file, report.rows())
