"""Plots, and a page of tables and plots that opens offline. plotly is optional: imported when something is drawn."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from latebind.cli.console import SomeRows, written

if TYPE_CHECKING:
    import plotly.graph_objects as go

Plot: TypeAlias = "go.Figure"
Axis = str | Mapping[str, object]  # a title, or several of plotly's properties of an axis

MARKED = "lines+markers"
SHARES = {"range": [0, 1.01], "tickformat": ".0%"}
HEIGHT = 420

STYLE = """
body { font-family: system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .3rem .8rem; text-align: left }
th { border-bottom: 2px solid #222 } td { border-bottom: 1px solid #ccc } p { line-height: 1.5 }
.plot { margin: 2rem 0 } .wide { overflow-x: auto }
"""


def blank(title: str, *, x: Axis = "", y: Axis = "", **layout: Any) -> Plot:
    """Return axes with nothing on them; `layout` is plotly's."""
    import plotly.graph_objects as go  # noqa: PLC0415  (plotly is optional)

    figure = go.Figure()
    figure.update_xaxes(_axis(x))
    figure.update_yaxes(_axis(y))
    return figure.update_layout(title=title, template="plotly_white", height=HEIGHT, **layout)


def lines(
    title: str,
    curves: Mapping[str, tuple[ArrayLike, ArrayLike]],
    *,
    x: Axis,
    y: Axis,
    mode: str = MARKED,
    **layout: Any,
) -> Plot:
    """Draw curves by name, each given by places and the values there."""
    figure = blank(title, x=x, y=y, **layout)
    for name, (places, values) in curves.items():
        figure.add_scatter(x=places, y=values, name=name, mode=mode)
    return figure


def bars(
    title: str, groups: Mapping[str, tuple[Sequence[Any], ArrayLike]], *, x: Axis = "", y: Axis, **layout: Any
) -> Plot:
    """Draw bars by the names of their groups, each given by places and the heights there."""
    figure = blank(title, x=x, y=y, **layout)
    for name, (places, values) in groups.items():
        figure.add_bar(x=places, y=values, name=name)
    return figure


def distributions(
    title: str, seconds: Mapping[str, ArrayLike], *, of: str = "requests", x: str = "latency, ms"
) -> Plot:
    """Draw the share (`of` requests) that took no longer than a time, for seconds by name."""
    ordered = {name: np.sort(np.asarray(some)) for name, some in seconds.items()}
    curves = {name: (some * 1e3, np.arange(1, len(some) + 1) / len(some)) for name, some in ordered.items()}
    return lines(title, curves, x={"title": x, "type": "log"}, y={"title": f"share of {of}", **SHARES}, mode="lines")


def _axis(axis: Axis) -> dict[str, object]:
    if isinstance(axis, str):
        return {"title": axis} if axis else {}
    return dict(axis)


def write_plots(file: Path, title: str, text: str, tables: Sequence[SomeRows], figures: Sequence[Plot]) -> None:
    """Write a page of tables, each of rows with equal keys, and figures; plotly's script is inside it."""
    import plotly.io as pio  # noqa: PLC0415  (plotly is optional)
    from plotly.offline import get_plotlyjs  # noqa: PLC0415

    plots = "".join(
        f'<div class="plot">{pio.to_html(figure, full_html=False, include_plotlyjs=False)}</div>' for figure in figures
    )
    table = "".join(_table(rows) for rows in tables if rows)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style><script>{get_plotlyjs()}</script></head><body><h1>{escape(title)}</h1>"
        f'<p>{text}</p><div class="wide">{table}</div>{plots}</body></html>'
    )


def _table(rows: SomeRows) -> str:
    head = "".join(f"<th>{escape(key)}</th>" for key in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(written(v))}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
