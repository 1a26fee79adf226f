"""`latebind calibrate`: new thresholds for learned caches, on data of your own, without training."""

from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.console import JsonFile, progress, reporting, save, show
from latebind.cli.lookups import Lookups, LookupsOption
from latebind.cli.numbers import in_bytes
from latebind.cli.promised import Promised, answers_of
from latebind.cli.sources import load_samples
from latebind.learned.build import recalibrate
from latebind.learned.promise import CACHE_BYTES
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models


def calibrate(
    repository: Annotated[Path, typer.Argument(help="A folder of models.")],
    *,
    model: Annotated[str, typer.Option(help="The model in the folder.")],
    data: Annotated[str, typer.Option(help="As for `latebind build`; only the part to calibrate is used.")],
    data_option: Annotated[
        list[str] | None,
        typer.Option(help="An argument key=value for the function that --data names; may be repeated."),
    ] = None,
    promised: Promised,
    backend: Annotated[str | None, typer.Option(help="The backend that will serve, if not the one built for.")] = None,
    threads: Annotated[int, typer.Option(help="Threads that a worker will have.")] = 1,
    memory: Annotated[
        float, typer.Option(help="The most megabytes for the learned caches in use; inf sets no limit.")
    ] = CACHE_BYTES / 1e6,
    tail: Annotated[
        float | None,
        typer.Option(help="How many times the base model's latency an input may take that no cache answers. As built."),
    ] = None,
    lookups: LookupsOption = Lookups.AUTO,
    seed: Annotated[int, typer.Option(help="Seed of the split into choosing and showing.")] = 0,
    json_file: JsonFile = None,
) -> None:
    """Choose the thresholds of a model's learned caches anew: another fidelity, or samples nearer to your traffic.

    Example: `latebind calibrate models --model resnet56 --data recent.npz --fidelity 0.99`
    """
    with reporting(), progress("calibrating") as tell:
        cache_bytes = in_bytes("--memory", memory, 1e6)
        (path,) = find_models(repository, [model])
        _, held_out = load_samples(data, data_option, seed=seed)
        report = recalibrate(
            ModelDirectory.open(path),
            held_out,
            fidelity=promised.fidelity,
            confidence=promised.confidence,
            threads=threads,
            backend=backend,
            seed=seed,
            cache_bytes=cache_bytes,
            tail=tail,
            aside=lookups.aside,
            answers=answers_of(promised.answers),
            progress=tell,
        )
    show(
        f"learned caches for fidelity {promised.fidelity:g}", [{"": label, " ": text} for label, text in report.rows()]
    )
    save(json_file, report.rows())
