"""`latebind replay`: plays an event log into a fresh scheduler and compares every action."""

from pathlib import Path
from typing import Annotated

import typer

from latebind.cli.console import console, errors, reporting
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import read_log
from latebind.queries.scheduler import make_scheduler


def replay(log: Annotated[Path, typer.Argument(help="A file written by `latebind serve --event-log`.")]) -> None:
    """Play a log of events into a fresh scheduler and compare what it decides, action by action.

    Exit code 0 if every action is the same, 1 at the first that is not.

    Example: `latebind replay events.jsonl`
    """
    with reporting():
        if not log.is_file():
            raise ConfigError(f"{log} is not a file: write one with `latebind serve --event-log {log}`")
        with log.open("rb") as file:
            config, entries = read_log(file)
            scheduler = make_scheduler(config)
            events = actions = 0
            for number, entry in enumerate(entries, start=2):
                decided = tuple(scheduler.handle(entry.event, entry.now))
                if decided != entry.actions:
                    errors.print(
                        f"line {number} differs: {entry.event}\n  log     {entry.actions}\n  replay  {decided}"
                    )
                    raise typer.Exit(1)
                events += 1
                actions += len(decided)
            scheduler.check()
    console.print(f"{events} events replayed, {actions} actions, all identical")
