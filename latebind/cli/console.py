"""The output of commands: tables for people, JSON for programs, one line for an error, progress of long work."""

import errno
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape

from latebind.domain.errors import LatebindError
from latebind.domain.model import StepSpec

console = Console()
errors = Console(stderr=True)

Row = dict[str, object]  # cells by the titles of their columns
Rows = list[Row]
SomeRows = Sequence[Mapping[str, object]]
ESTIMATE_SECONDS = 600.0
REPORT_AFTER, REPORT_SECONDS = 2.0, 10.0  # seconds until the first line, and from one to the next
FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def reporting() -> Iterator[None]:
    """Turn one of latebind's own errors, or a file error, into one line and exit code 2."""

    try:
        yield
    except LatebindError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename}: {error.strerror}" if error.filename else error.strerror or str(error)
        if error.errno in FULL:
            message += ": free some space there, or name another folder, and run it again"
    else:
        return
    errors.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(2)


def complain(problems: Sequence[str]) -> None:
    """Print each problem on a line, and exit with code 1 if there is any."""
    for line in problems:
        errors.print(line, highlight=False, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


def show(title: str, rows: SomeRows, *, to: Console | None = None) -> None:
    """Print rows of equal keys as a table, without empty columns; by default as output.

    If the terminal is too narrow for every word, the cells of each row are printed one below another instead.
    """
    from rich.table import Table  # noqa: PLC0415  (a server without a terminal needs neither this nor rich.progress)

    keys = [key for key in rows[0] if any(written(row[key]) for row in rows)] if rows else []
    columns = {key: [written(row[key]) for row in rows] for key in keys}
    table = Table(title=title, title_justify="left", header_style="bold")
    output = to or console
    widths = _widths(columns, output.width)
    if widths is not None:
        for key in keys:
            numeric = all(isinstance(row[key], int | float) for row in rows)
            table.add_column(key, justify="right" if numeric else "left", width=widths[key])
        for cells in zip(*columns.values(), strict=True):
            table.add_row(*cells)
    else:
        table.show_header = False
        for number in range(len(rows)):
            for key in keys:
                table.add_row(key, columns[key][number])
            table.add_section()
    output.print(table)


def _widths(columns: Mapping[str, Sequence[str]], room: int) -> dict[str, int] | None:
    """Return the width of each column in a table of this width.

    A column gets its longest word, and a part of the remaining room, shortest columns first. None if there is no room
    for every word. Rich by itself shrinks the widest columns without regard to their words, and cuts words that had
    room.
    """
    wanted = {key: max(map(cell_len, (key, *cells))) for key, cells in columns.items()}
    widths = {
        key: max(cell_len(word) for text in (key, *cells) for word in text.split() or [""])
        for key, cells in columns.items()
    }
    if columns:
        first = next(iter(columns))
        widths[first] = wanted[first]  # names are not wrapped
    left = room - 3 * len(columns) - 1 - sum(widths.values())
    if left < 0:
        return None
    for key in sorted(columns, key=lambda key: wanted[key] - widths[key]):
        more = min(wanted[key] - widths[key], left)
        widths[key] += more
        left -= more
    return widths


def show_pairs(title: str, pairs: Sequence[tuple[str, str]]) -> None:
    """Print labels, each with a text beside it."""
    show(title, [{"": label, " ": text} for label, text in pairs])


def show_tables(tables: Mapping[str, SomeRows]) -> None:
    """Print each table that has rows, under its title."""
    for title, rows in tables.items():
        if rows:
            show(title, rows)


def save(file: Path | None, figures: Any) -> None:
    """Write figures as JSON if a file is given."""
    if file is None:
        return
    with reporting():
        file.write_text(json.dumps(figures, indent=2, default=_plain) + "\n")
    console.print(f"figures written to {file}")


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.asdict(value)
    return str(value)


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, float], None]]:
    """Show a progress bar; yields a function that takes the current step and the share (0 to 1) that is done.

    Without a terminal, as in a notebook, a CI job or under `nohup`, work that takes longer than `REPORT_AFTER` prints a
    line, and then one every `REPORT_SECONDS`.
    """
    if not errors.is_terminal:
        begun = time.monotonic()
        due = begun + REPORT_AFTER

        def report(doing: str, share: float) -> None:
            nonlocal due
            if (now := time.monotonic()) >= due:
                due = now + REPORT_SECONDS
                after = timedelta(seconds=round(now - begun))
                print(f"{title}: {doing}, {share:.0%} after {after}", file=sys.stderr, flush=True)

        yield report
        return
    from rich import progress as shown  # noqa: PLC0415

    columns = (
        shown.TextColumn("{task.description}"),
        shown.BarColumn(),
        shown.TaskProgressColumn(),
        shown.TimeElapsedColumn(),
        shown.TimeRemainingColumn(),
    )
    # steps of a build differ in pace: the estimate looks back further than rich's half minute
    with shown.Progress(*columns, console=errors, transient=True, speed_estimate_period=ESTIMATE_SECONDS) as bars:
        task = bars.add_task(title, total=1.0)
        yield lambda doing, share: bars.update(task, description=f"{title}: {doing}", completed=share)


def written(value: object) -> str:
    """Write a number with four digits, and shares by name as percent."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {share:.0%}" for name, share in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def in_order(steps: Sequence[StepSpec]) -> str:
    """Return the names of steps in dependency order, as in `gate -> cars, animals`.

    Names between the same arrows wait for equally long chains.
    """
    depths: list[int] = []
    waves = defaultdict[int, list[str]](list)
    for step in steps:
        depths.append(1 + max([depths[i] for i in step.after], default=-1))
        waves[depths[-1]].append(step.name)
    return " -> ".join(", ".join(waves[depth]) for depth in sorted(waves))


def milliseconds(seconds: float) -> str:
    """Write seconds as milliseconds."""
    return f"{seconds * 1e3:.2f}"


def percent(share: float) -> str:
    """Write a share as percent."""
    return f"{share:.1%}"
