"""`latebind bench`: measure your own models and servers."""

import signal
from collections.abc import Mapping
from typing import Any, ClassVar

import typer

from latebind.cli.commands import STYLE, DeferredCommands

STATUS = 128 + signal.SIGINT  # which shells expect from a process that SIGINT ended


class Benchmarks(DeferredCommands):
    """Commands that may be interrupted."""

    modules: ClassVar[Mapping[str, str]] = {
        name: f"{__name__}.{module}"
        for name, module in (("load", "exits"), ("exits", "exits"), ("memory", "exits"), ("ledger", "ledger"))
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command. If it is interrupted, the results so far are printed, and the status is 130."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("interrupted: only the results so far were printed and written", err=True)
            raise typer.Exit(STATUS) from None


app = typer.Typer(cls=Benchmarks, no_args_is_help=True, **STYLE)


@app.callback()
def bench() -> None:
    """Measure your own models and servers; every command prints its settings.

    Ctrl-C ends a command with exit code 130.
    """
