"""`latebind bench`: measure models and servers of your own."""

import signal
from collections.abc import Mapping
from typing import Any, ClassVar

import typer

from latebind.cli.commands import STYLE, DeferredCommands

STATUS = 128 + signal.SIGINT  # what shells expect of a process that SIGINT ended


class Benchmarks(DeferredCommands):
    """Commands that may be interrupted."""

    modules: ClassVar[Mapping[str, str]] = {
        name: f"{__name__}.{module}"
        for name, module in (("load", "exits"), ("exits", "exits"), ("memory", "exits"), ("ledger", "ledger"))
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Whoever interrupts it has what was measured by then, and status 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted: what is printed and written is what was measured by then", err=True)
            raise typer.Exit(STATUS) from None


app = typer.Typer(cls=Benchmarks, no_args_is_help=True, **STYLE)


@app.callback()
def bench() -> None:
    """Measure models and servers of your own; every command prints its settings.

    Ctrl-C ends a command with exit code 130.
    """
