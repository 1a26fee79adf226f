"""`latebind replay`: plays an event log into a fresh scheduler and compares every action."""

from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.console import console, errors, reporting
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import read_log
from latebind.queries.scheduler import replayed


def replay(log: Annotated[Path, typer.Argument(help="A file written by `latebind serve --event-log`.")]) -> None:
    """Play a log of events into a fresh scheduler and compare what it decides, action by action.

    Exit code 0 if every action is the same, 1 at the first that is not.

    Example: `latebind replay events.jsonl`
    """
    with reporting():
        if not log.is_file():
            raise ConfigError(f"{log} is not a file: write one with `latebind serve --event-log {log}`")
        with log.open("rb") as file:
            events, actions, differs = replayed(*read_log(file))
    if differs:
        errors.print(differs)
        raise typer.Exit(1)
    console.print(f"{events} events replayed, {actions} actions, all identical")
