"""`latebind bench`: measure models and servers of your own."""

from collections.abc import Mapping
from typing import Any, ClassVar

import typer

from latebind.bench.rounds import STATUS, interruptible
from latebind.cli.commands import STYLE, DeferredCommands


class Benchmarks(DeferredCommands):
    """Commands that may be interrupted."""

    modules: ClassVar[Mapping[str, str]] = {
        name: f"{__name__}.{module}"
        for name, module in (("load", "exits"), ("exits", "exits"), ("memory", "exits"), ("ledger", "ledger"))
    }

    def invoke(self, ctx: Any) -> Any:
        """Run the command. Whoever interrupts it has what was measured by then, and status 130."""
        with interruptible() as interrupts:
            try:
                found = super().invoke(ctx)
            except KeyboardInterrupt:
                typer.echo("interrupted: what is printed and written is what was measured by then", err=True)
                raise typer.Exit(STATUS) from None
        if interrupts.heard:
            raise typer.Exit(STATUS)
        return found


app = typer.Typer(cls=Benchmarks, no_args_is_help=True, **STYLE)


@app.callback()
def bench() -> None:
    """Measure models and servers of your own; every command prints its settings.

    Ctrl-C ends a command after the round under way, with what was measured by then, and exit code 130; a second one
    ends it at once.
    """
