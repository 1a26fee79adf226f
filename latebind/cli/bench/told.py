"""The results of a part of a benchmark: tables to print, figures to save, and plots for a page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import typer

from latebind.bench.chart import Plot
from latebind.bench.page import write_plots
from latebind.bench.parallel import Progress
from latebind.bench.tables import Rows
from latebind.cli.console import errors, progress, show

Part = TypeVar("Part", bound=StrEnum)
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True)
class Told:
    """Tables by title, a function that draws plots for a page, and figures to save as JSON."""

    tables: Mapping[str, Rows]
    draw: Callable[[], Sequence[Plot]] = tuple
    raw: object = None


ByPart = Mapping[Part, Callable[[Asked, Progress], Told]]


def write_page(page: Path | None, title: str, text: str, told: Iterable[Told]) -> None:
    """Write all tables and plots to a page, if a file is given."""
    if page is not None:
        parts = list(told)
        tables = [rows for one in parts for rows in one.tables.values()]
        write_plots(page, title, text, tables, [plot for one in parts for plot in one.draw()])


def show_tables(tables: Mapping[str, Rows]) -> None:
    """Print each table that has rows, under its title."""
    for title, rows in tables.items():
        if rows:
            show(title, rows)


def complain(problems: Sequence[str]) -> None:
    """Print each problem on a line, and exit with code 1 if there is any."""
    for line in problems:
        errors.print(line, highlight=False, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def tell_parts(parts: Iterable[Part], runs: ByPart[Part, Asked], asked: Asked) -> dict[Part, Told]:
    """Run the parts that were asked for, each with a progress bar, and print their tables."""
    found: dict[Part, Told] = {}
    for part in parts:
        with progress(part) as tell:
            found[part] = runs[part](asked, tell)
        show_tables(found[part].tables)
    return found
