"""The `latebind` command. A subcommand is imported when it is asked for, so that `serve` never loads torch."""

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from latebind import __version__
from latebind.cli.deferred import Deferred
from latebind.cli.extras import what_to_install
from latebind.compiled import is_compiled

COMMANDS = ("build", "calibrate", "serve", "simulate", "plan", "bench", "models", "versions", "replay")


class Commands(TyperGroup):
    """Finds the subcommand NAME as `app` in `latebind.cli.NAME`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order in which they are used."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Deferred | None:
        """Return the command of this name, or None if there is no such command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = f"latebind.cli.{cmd_name}"
        return Deferred(cmd_name, module, lambda: _command(cmd_name, module))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; where a package is missing that is optional, say in one line how to get it."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            if (said := what_to_install(error)) is None:
                raise
            typer.echo(f"error: {said}", err=True)
            raise typer.Exit(2) from error


def _command(name: str, module: str) -> TyperCommand | TyperGroup:
    command = typer.main.get_command(importlib.import_module(module).app)
    assert isinstance(command, TyperCommand | TyperGroup)
    command.name = name
    return command


app = typer.Typer(
    name="latebind",
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


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
