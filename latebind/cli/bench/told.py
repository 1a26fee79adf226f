"""What a part of a benchmark has found: tables to print, figures to save, plots for a page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import plotly.graph_objects as go

Rows = list[dict[str, object]]


def _nothing() -> "Sequence[go.Figure]":
    return ()


@dataclass(frozen=True, slots=True)
class Told:
    """Tables by their titles, what is drawn on a page (plotly is optional, so it is imported only then), figures."""

    tables: Mapping[str, Rows]
    draw: "Callable[[], Sequence[go.Figure]]" = _nothing
    raw: object = None


def write_page(page: Path, title: str, text: str, told: Sequence[Told]) -> None:
    """Write all tables and plots to a page."""
    from latebind.bench.page import write_plots  # noqa: PLC0415  (plotly is optional)

    tables = [rows for one in told for rows in one.tables.values()]
    write_plots(page, title, text, tables, [plot for one in told for plot in one.draw()])
