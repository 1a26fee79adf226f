"""The output of commands: tables for people, JSON for programs, one line for an error, progress of long work."""

import errno
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from latebind.domain.errors import LatebindError

console = Console()
errors = Console(stderr=True)

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to FILE as JSON.")]
Row = dict[str, object]  # cells by the titles of their columns
Rows = list[Row]
SomeRows = Sequence[Mapping[str, object]]
ESTIMATE_SECONDS = 600.0
SAY_SECONDS = 10.0
FEW = 10  # rows that are still read one below another
FULL = (errno.ENOSPC, errno.EDQUOT)
TELLING = 0.05  # of the work: before, the rest cannot be told from it


@contextmanager
def reporting() -> Iterator[None]:
    """Turn an error that latebind raised on purpose, or one of a file, into one line and exit code 2."""
    try:
        yield
    except LatebindError as error:
        said = str(error)
    except OSError as error:
        said = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        if error.errno in FULL:
            said += ": free some space there, or name another folder, and run it again"
    else:
        return
    errors.print(f"[bold red]error:[/] {escape(said)}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def show(title: str, rows: SomeRows) -> None:
    """Print rows of equal keys as a table. Where that is too wide for its words, nothing is cut off.

    A few rows are then printed one below another. Many become several tables, each with the first column, which names
    the rows, and as many others as there is room for. A column in which no row has anything is left out.
    """
    keys = [key for key in rows[0] if any(written(row[key]) for row in rows)] if rows else []
    if _fits(rows, keys):
        console.print(_table(title, rows, keys))
    elif len(rows) <= FEW:
        console.print(_upright(title, rows, keys))
    else:
        for part in _parts(rows, keys):
            console.print(_table(title, rows, part))


def _table(title: str, rows: SomeRows, keys: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold")
    widths = _widths(rows, keys)
    for key, width in zip(keys, widths, strict=True):
        numeric = all(isinstance(row[key], int | float) for row in rows)
        table.add_column(key, justify="right" if numeric else "left", no_wrap=key == keys[0], width=width)
    for row in rows:
        table.add_row(*(written(row[key]) for key in keys))
    return table


def _widths(rows: SomeRows, keys: Sequence[str]) -> list[int | None]:
    """Return how wide each column is: its longest word, and of the room that is left, what it lacks, shortest first.

    None where there is no room for every word. Rich alone takes room from the widest columns without regard to their
    words, and cuts words off that had room.
    """
    columns = [[key, *(written(row[key]) for row in rows)] for key in keys]
    wanted = [max(map(cell_len, texts)) for texts in columns]
    needed = [max(cell_len(word) for text in texts for word in text.split() or [""]) for texts in columns]
    if columns:
        needed[0] = wanted[0]  # names are not wrapped
    left = console.width - 3 * len(columns) - 1 - sum(needed)
    if left < 0:
        return [None] * len(columns)
    for place in sorted(range(len(columns)), key=lambda place: wanted[place] - needed[place]):
        more = min(wanted[place] - needed[place], left)
        needed[place] += more
        left -= more
    return list(needed)


def _fits(rows: SomeRows, keys: Sequence[str]) -> bool:
    return None not in _widths(rows, keys)


def _parts(rows: SomeRows, keys: Sequence[str]) -> list[list[str]]:
    """Return the columns of each table: the first, and as many others as fit beside it, but at least one."""
    first, *others = keys
    parts = [[first]]
    for key in others:
        if len(parts[-1]) > 1 and not _fits(rows, [*parts[-1], key]):
            parts.append([first])
        parts[-1].append(key)
    return parts


def _upright(title: str, rows: SomeRows, keys: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for row in rows:
        for key in keys:
            table.add_row(key, written(row[key]))
        table.add_section()
    return table


def show_tables(tables: Mapping[str, SomeRows]) -> None:
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


def save(file: Path | None, figures: Any) -> None:
    """Write figures as JSON where a file is named."""
    if file is not None:
        with reporting():
            file.write_text(json.dumps(figures, indent=2, default=_plain) + "\n")
        console.print(f"figures written to {file}")


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, float], None]]:
    """Show a bar; yields a function that takes what is being done and the share (0 to 1) that is done.

    Where nobody watches a terminal, as in a CI job or behind `nohup`, a line is written every `SAY_SECONDS` instead.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # steps of a build differ in pace: the estimate looks back further than rich's half minute
    bars = Progress(*columns, console=errors, transient=True, speed_estimate_period=ESTIMATE_SECONDS)
    task = bars.add_task(title, total=1.0)

    def tell(doing: str, share: float) -> None:
        if share != bars.tasks[0].completed:
            bars.update(task, stepped=bars.tasks[0].elapsed)
        bars.update(task, description=f"{title}: {doing}", completed=share)

    with bars if errors.is_terminal else saying(lambda: in_words(bars.tasks[0]), SAY_SECONDS):
        yield tell


@contextmanager
def saying(line: Callable[[], str], period: float) -> Iterator[None]:
    """Write `line()` to standard error every `period` seconds while the block lasts, from a thread."""
    over = Event()

    def say() -> None:
        while not over.wait(period):
            print(line(), file=sys.stderr, flush=True)

    thread = Thread(target=say, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def in_words(task: Task) -> str:
    """Return what a bar shows: `building resnet: cutting, 40% after 0:01:10, about 0:01:45 left`.

    What is left when a step ends is taken to go as fast as all before, and goes down from there. Of a step that takes
    longer than all before, such as a backend that compiles, nothing is known, so nothing is said.
    """
    now, share = task.elapsed or 0.0, task.completed / (task.total or 1.0)
    stepped: float = task.fields.get("stepped") or 0.0  # when the share was told
    since = now - stepped
    rest = stepped * (1 - share) / share - since if TELLING <= share < 1.0 else 0.0
    left = f", about {_clock(rest)} left" if rest > 0.0 and since <= stepped else ""
    return f"{task.description}, {share:.0%} after {_clock(now)}{left}"


def written(value: object) -> str:
    """Write a number with four digits, and shares by name as percent."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {share:.0%}" for name, share in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def milliseconds(seconds: float) -> str:
    """Write seconds as milliseconds."""
    return f"{seconds * 1e3:.2f}"


def percent(share: float) -> str:
    """Write a share as percent."""
    return f"{share:.1%}"


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
