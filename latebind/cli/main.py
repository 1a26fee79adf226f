"""The `latebind` command. A subcommand is imported when it is asked for, so that `serve` never loads torch."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import typer

from latebind import __version__
from latebind.cli.deferred import STYLE, DeferredCommands
from latebind.cli.extras import what_to_install
from latebind.compiled import is_compiled

COMMANDS = ("build", "calibrate", "serve", "simulate", "plan", "bench", "models", "versions", "replay")


class Commands(DeferredCommands):
    """Finds the subcommand NAME in `latebind.cli.NAME`."""

    modules: ClassVar[Mapping[str, str]] = {name: f"latebind.cli.{name}" for name in COMMANDS}

    def invoke(self, ctx: Any) -> Any:
        """Run the command; where a package is missing that is optional, say in one line how to get it."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (said := what_to_install(error)) is None:
                raise
            typer.echo(f"error: {said}", err=True)
            raise typer.Exit(2) from error


app = typer.Typer(name="latebind", cls=Commands, no_args_is_help=True, **STYLE)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"{__version__}, compiled" if is_compiled() else __version__)
        raise typer.Exit


@app.callback()
def latebind(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """A prediction server for PyTorch models that decides late: easy inputs leave the network early."""
    del version
