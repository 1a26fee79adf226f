"""The `latebind` command. A subcommand is imported only when it runs, so that `serve` never loads torch."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

import typer

from latebind import __version__
from latebind.cli.commands import STYLE, DeferredCommands
from latebind.compiled import is_compiled

MODULES = {
    "build": "build", "calibrate": "build", "serve": "serve", "check": "check", "simulate": "simulate", "plan": "plan",
    "bench": "bench", "models": "models", "versions": "models", "replay": "simulate",
}  # fmt: skip


class Commands(DeferredCommands):
    """Finds each subcommand in its module of this folder."""

    modules: ClassVar[Mapping[str, str]] = {name: f"latebind.cli.{module}" for name, module in MODULES.items()}


app = typer.Typer(name="latebind", cls=Commands, no_args_is_help=True, **STYLE)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{__version__}, compiled" if is_compiled() else __version__)
        raise typer.Exit


@app.callback()
def latebind(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A prediction server for PyTorch models that decides late: easy inputs leave the network early."""
    del version
