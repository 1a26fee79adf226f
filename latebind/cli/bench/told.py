"""What a part of a benchmark has found: tables to print, figures to save, plots for a page."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from latebind.bench.spread import Progress
from latebind.cli.console import progress, show

if TYPE_CHECKING:
    import plotly.graph_objects as go

Rows = list[dict[str, object]]
Part = TypeVar("Part", bound=StrEnum)


def _nothing() -> "Sequence[go.Figure]":
    return ()


@dataclass(frozen=True, slots=True)
class Told:
    """Tables by their titles, what is drawn on a page (plotly is optional, so it is imported only then), figures."""

    tables: Mapping[str, Rows]
    draw: "Callable[[], Sequence[go.Figure]]" = _nothing
    raw: object = None


def write_page(page: Path | None, title: str, text: str, told: Iterable[Told]) -> None:
    """Write all tables and plots to a page where one is named."""
    if page is None:
        return
    from latebind.bench.page import write_plots

    parts = list(told)
    tables = [rows for one in parts for rows in one.tables.values()]
    write_plots(page, title, text, tables, [plot for one in parts for plot in one.draw()])


def tell_parts(parts: Iterable[Part], run: Callable[[Part, Progress], Told]) -> dict[Part, Told]:
    """Run parts of a benchmark, each with a progress bar, and print their tables."""
    found: dict[Part, Told] = {}
    for part in parts:
        with progress(part) as tell:
            found[part] = run(part, tell)
        for title, rows in found[part].tables.items():
            show(title, rows)
    return found
