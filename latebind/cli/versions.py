"""`latebind versions`: the versions of a model's learned caches that adaptation made, and which one is in use."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from latebind.adaptation.controller import BUILT, FULL_DEPTH
from latebind.adaptation.versions import Versions, versions_folder
from latebind.cli.console import Row, console, milliseconds, reporting, save, show
from latebind.cli.options import JsonFile
from latebind.domain.errors import ConfigError, RepositoryError
from latebind.learned.stored import read_caches
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models

COLUMNS = ("version", "in use", "made", "because", "fidelity", "mean ms", "made for")


def versions(
    repository: Annotated[Path, typer.Argument(help="A folder of models, or one model directory.")],
    model: Annotated[str | None, typer.Option(help="The model in the folder.")] = None,
    use: Annotated[
        str, typer.Option(help="Use this version from now on: its number, `built`, or `none` for no exits.")
    ] = "",
    adapted: Annotated[Path | None, typer.Option(help="Folder of versions, if `serve` was given one.")] = None,
    json_file: JsonFile = None,
) -> None:
    """List the versions of a model's learned caches that `serve --adapt` made; go back to one with `--use`.

    A server that runs with `--adapt` takes the choice over within a second, others when they start.

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
            raise ConfigError(f"{directory.path} has no learned caches: build it with data first")
        there = Versions(versions_folder(directory.path, str(adapted or "")), directory)
        if use:
            there.make_current(use, by_hand=True)
        current = there.current()
        made = [_row(there, name) for name in there.names()]
        always: list[Row] = [
            {"version": BUILT, "because": "what build made"},
            {"version": FULL_DEPTH, "because": "no exits"},
        ]
        rows = [{column: row.get(column, "") for column in COLUMNS} for row in [*always, *made]]
        for row in rows:
            row["in use"] = "*" if row["version"] == current else ""
        show(f"learned caches of {directory.path}; * is in use", rows)
        if not made:
            console.print("serve with --adapt to have the learned caches follow the traffic")
        save(json_file, {"current": current, "versions": rows[len(always) :]})


def _row(there: Versions, name: str) -> Row:
    try:
        about = there.about(name)
    except RepositoryError:
        return {"version": name, "because": "belongs to other caches"}
    often = sorted(about.mix.items(), key=lambda item: -item[1])[:3]
    return {
        "version": name,
        "made": f"{datetime.fromtimestamp(about.made):%Y-%m-%d %H:%M:%S}",
        "because": about.reason,
        "fidelity": f"{about.fidelity:.3f}, at least {about.lower:.3f} on {about.rows}",
        "mean ms": milliseconds(sum(about.seconds[answer] * share for answer, share in about.mix.items())),
        "made for": ", ".join(f"class {answer} {share:.0%}" for answer, share in often),
    }
