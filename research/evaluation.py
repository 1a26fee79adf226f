"""How every evaluation reports: its settings and the machine first, then a table, plots and figures for each part."""

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from os import sched_getaffinity
from typing import Annotated

import typer
from typer import Option

from latebind.bench import subject as bench
from latebind.bench.report import Plot, write_plots
from latebind.bench.rounds import Progress
from latebind.cli.bench.options import Backend, Core, FrontendCore
from latebind.cli.console import Rows, complain, console, progress, save, show_tables
from latebind.cli.options import JsonFile, Page, Seed
from latebind.domain.errors import ConfigError
from latebind.program.metadata import this_hardware

Floats = list[float] | None
Words = list[str] | None
Load = Annotated[Floats, Option(help="Offered load, as the command's help says; may be repeated.")]
SideName = Annotated[Words, Option(help="Compare only this side, named as in the tables; may be repeated.")]
Rounds = Annotated[int, Option(min=1, help="How often each side has its turn.")]
Seconds = Annotated[float, Option(min=0.01, help="How many seconds a block of requests lasts.")]
Seeds = Annotated[int, Option(min=1, help="How often each cell is run, with seeds from 0 on.")]
FirstSeed = Annotated[int, Option(min=0, help="Begin with this seed in place of 0.")]


@dataclass(frozen=True, slots=True)
class Found:
    """What a part found: tables by title, plots of them, the figures behind them, and what should not have been.

    `conditions` are settings that only running shows, as the versions of other servers.
    """

    tables: Mapping[str, Rows]
    draw: Callable[[], Sequence[Plot]] = tuple
    raw: object = None
    problems: Sequence[str] = ()
    conditions: Mapping[str, object] = field(default_factory=dict)


Part = Callable[[Progress], Found]


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Which parts to run, and the files that are written: a page of tables and plots, and figures as JSON.

    `context` has all options of the command, which are told with what is found.
    """

    context: typer.Context
    part: Annotated[Words, Option(help="Run only this part; may be repeated.")] = None
    page: Page = None
    json_file: JsonFile = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What all live sides have in common. The frontend and the clients share a core, the engines another."""

    backend: Backend = None
    engine_core: Core = 1
    frontend_core: FrontendCore = 0
    seed: Seed = 0

    def setting(self) -> bench.Setting:
        """Return how each side is served."""
        return bench.Setting(self.backend, (self.frontend_core,), self.engine_core, self.seed)


def evaluate(parts: Mapping[str, Part], output: Output, told: Mapping[str, object] | None = None) -> None:
    """Run the parts that are asked for, all unless some are named; print and write what each found as it ends.

    First come all options of the command, what was `told` besides, and the machine. Exits with code 1 if a part found a
    problem. Raises `ConfigError` for a part that there is not.
    """
    wanted = list(dict.fromkeys(output.part or parts))
    if unknown := [part for part in wanted if part not in parts]:
        raise ConfigError(f"there is no part {unknown[0]!r}: take some of {', '.join(parts)}")
    settings = {**_options(output.context), **(told or {}), "machine": _machine()}
    text = "; ".join(f"{name} {value}" for name, value in settings.items())
    console.print(text, highlight=False, markup=False, soft_wrap=True)
    found: dict[str, Found] = {}
    for part in wanted:
        with progress(part) as on_progress:
            found[part] = parts[part](on_progress)
        show_tables(found[part].tables)
        settings |= found[part].conditions
        if output.page is not None:
            tables = [rows for one in found.values() for rows in one.tables.values()]
            plots = [plot for one in found.values() for plot in one.draw()]
            write_plots(output.page, f"latebind: {settings['command']}", text, tables, plots)
        figures = {name: {"tables": one.tables, "raw": one.raw} for name, one in found.items()}
        save(output.json_file, {"settings": settings, **figures})
    complain([problem for one in found.values() for problem in one.problems])


def _options(context: typer.Context) -> dict[str, object]:
    """Return the name of the command that runs and all of its options, those that were left out too."""
    written = {"part", "page", "json_file"}
    given = {name: value for name, value in context.params.items() if name not in written and value is not None}
    return {"command": context.info_name, **given}


def _machine() -> str:
    """Name processor, cores and torch, and the day: no figure means anything without them."""
    here, cores = this_hardware(1), len(sched_getaffinity(0))
    with_what = f"torch {here.torch}, Python {platform.python_version()}"
    return f"{here.cpu}, {cores} cores, {with_what}, {datetime.now(UTC):%Y-%m-%d}"
