"""How commands speak: tables for people, JSON for programs, one line for an error, progress for long work."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from latebind.bench.tables import written
from latebind.domain.errors import LatebindError

console = Console()
errors = Console(stderr=True)

JsonFile = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the figures to FILE as JSON.")]
Row = Mapping[str, object]
ESTIMATE_SECONDS = 600.0


@contextmanager
def reporting() -> Iterator[None]:
    """Turn an error that latebind raised on purpose into one line and exit code 2."""
    try:
        yield
    except LatebindError as error:
        errors.print(f"[bold red]error:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        raise typer.Exit(2) from None


def show(title: str, rows: Sequence[Row]) -> None:
    """Print rows of equal keys as a table."""
    table = Table(title=title, title_justify="left", header_style="bold")
    for key in rows[0] if rows else ():
        numeric = all(isinstance(row[key], int | float) for row in rows)
        table.add_column(key, justify="right" if numeric else "left")
    for row in rows:
        table.add_row(*(written(value) for value in row.values()))
    console.print(table)


def save(file: Path | None, figures: Any) -> None:
    """Write figures as JSON where a file is named."""
    if file is not None:
        file.write_text(json.dumps(figures, indent=2, default=_plain) + "\n")
        console.print(f"figures written to {file}")


@contextmanager
def progress(title: str) -> Iterator[Callable[[str, float], None]]:
    """Show a bar; yields a function that takes what is being done and the share (0 to 1) that is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # steps of a build differ in pace: the estimate looks back further than rich's half minute
    with Progress(*columns, console=errors, transient=True, speed_estimate_period=ESTIMATE_SECONDS) as bars:
        task = bars.add_task(title, total=1.0)
        yield lambda doing, share: bars.update(task, description=f"{title}: {doing}", completed=share)


def milliseconds(seconds: float) -> str:
    """Write seconds as milliseconds."""
    return f"{seconds * 1e3:.2f}"


def percent(share: float) -> str:
    """Write a share as percent."""
    return f"{share:.1%}"


def _plain(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)
