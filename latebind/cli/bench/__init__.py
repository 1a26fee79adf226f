"""`latebind bench`: every promise of speed as a command that prints what it measured."""

import importlib
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from latebind.cli.deferred import Deferred

PARTS = {
    "batching": "batching",
    "live": "batching",
    "joint": "joint",
    "elastic": "elastic",
    "elastic-live": "elastic_live",
    "exits": "exits",
    "engine": "exits",
    "caches": "caches",
    "calibration": "adaptation",
    "locality": "adaptation",
    "drift": "adaptation",
    "load": "load",
    "flood": "load",
    "door": "load",
    "scheduler": "overhead",
    "stages": "overhead",
    "boundary": "overhead",
    "memory": "memory",
    "queries": "queries",
    "residency": "residency",
    "residency-live": "residency_live",
    "queries-live": "queries_live",
    "faults": "faults",
    "peers": "peers",
    "ledger": "ledger",
    "ray": "ray",
    "cluster": "cluster",
    "validate": "validate",
}
"""The module of this folder that has each part, as a function of the same name."""


class Parts(TyperGroup):
    """Imports a part when it is asked for: what one needs beside latebind, others do without."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names in the order of the table."""
        del ctx
        return list(PARTS)

    def get_command(self, ctx: Any, cmd_name: str) -> Deferred | None:
        """Return the command of this part, or None if there is no such part."""
        del ctx
        if cmd_name not in PARTS:
            return None
        module = f"{__name__}.{PARTS[cmd_name]}"
        return Deferred(cmd_name, module, lambda: _command(cmd_name, module))


def _command(name: str, module: str) -> TyperCommand:
    """Import the function of a part and return it as a command."""
    alone = typer.Typer(rich_markup_mode="markdown", pretty_exceptions_enable=False, add_completion=False)
    alone.command(name)(getattr(importlib.import_module(module), name.replace("-", "_")))
    command = typer.main.get_command(alone)
    assert isinstance(command, TyperCommand)
    return command


app = typer.Typer(
    cls=Parts,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    add_completion=False,
)


@app.callback()
def bench() -> None:
    """Measure what latebind promises; every command prints its settings."""
