"""The `latebind` command. A subcommand is imported when it is asked for, so that `serve` never loads torch."""

import importlib
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from latebind import __version__

COMMANDS = ("build", "calibrate", "serve", "simulate", "plan", "bench", "models", "versions", "replay")


class Commands(TyperGroup):
    """Finds the subcommand NAME as `app` in `latebind.cli.NAME`."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order in which they are used."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | TyperGroup | None:
        """Import the module of this command, or return None if there is no such command."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        command = typer.main.get_command(importlib.import_module(f"latebind.cli.{cmd_name}").app)
        assert isinstance(command, TyperCommand | TyperGroup)
        command.name = cmd_name
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
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def latebind(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")
    ] = False,
) -> None:
    """A prediction server for PyTorch models that decides late: easy inputs leave the network early."""
    del version
