"""Plots for the pages of benchmarks. plotly is optional, so it is imported only when something is drawn."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    import plotly.graph_objects as go

Plot: TypeAlias = "go.Figure"
Axis = str | Mapping[str, object]  # a title, or several of plotly's properties of an axis

MARKED = "lines+markers"
SHARES = {"range": [0, 1.01], "tickformat": ".0%"}
HEIGHT = 420


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
    """Draw curves by their names, each the places and the values there."""
    figure = blank(title, x=x, y=y, **layout)
    for name, (places, values) in curves.items():
        figure.add_scatter(x=places, y=values, name=name, mode=mode)
    return figure


def bars(
    title: str, groups: Mapping[str, tuple[Sequence[Any], ArrayLike]], *, x: Axis = "", y: Axis, **layout: Any
) -> Plot:
    """Draw bars by the names of their groups, each the places and how high they are there."""
    figure = blank(title, x=x, y=y, **layout)
    for name, (places, values) in groups.items():
        figure.add_bar(x=places, y=values, name=name)
    return figure


def distributions(
    title: str, seconds: Mapping[str, ArrayLike], *, of: str = "requests", x: str = "latency, ms"
) -> Plot:
    """Draw which share (`of` what) took no longer than a time, for seconds by name."""
    ordered = {name: np.sort(np.asarray(some)) for name, some in seconds.items()}
    curves = {name: (some * 1e3, np.arange(1, len(some) + 1) / len(some)) for name, some in ordered.items()}
    return lines(title, curves, x={"title": x, "type": "log"}, y={"title": f"share of {of}", **SHARES}, mode="lines")


def _axis(axis: Axis) -> dict[str, object]:
    if isinstance(axis, str):
        return {"title": axis} if axis else {}
    return dict(axis)
