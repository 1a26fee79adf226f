"""Plots of tables: one column over another, a curve for each value of a third. Numbers are read from the cells."""

import re
from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Any

import numpy as np

from latebind.bench.report import MARKED, Axis, Plot, bars, lines
from latebind.bench.statistics import Interval
from latebind.cli.console import Rows

NUMBER = re.compile(r"[-+]?\d[\d,]*(?:\.\d+)?")


def number(cell: object) -> float | None:
    """Return the first number of a cell, such as 1.2 of `1.2 [0.9, 1.5]`, or None if it has none."""
    if isinstance(cell, Interval):
        return cell.value
    if isinstance(cell, int | float):
        return float(cell)
    found = NUMBER.search(str(cell))
    return float(found[0].replace(",", "")) if found else None


def curves(title: str, rows: Rows, *, by: str, x: str, y: str, mode: str = MARKED, **axes: Any) -> Plot:
    """Draw column `y` over column `x` as a line for each value of column `by`; `axes` are plotly's of the x-axis."""
    return lines(title, _grouped(rows, by, x, y, number), x={"title": x, **axes}, y=y, mode=mode)


def columns(title: str, rows: Rows, *, by: str, x: str, y: str, **layout: Any) -> Plot:
    """Draw the same as bars, whose places are the words in column `x`."""
    return bars(title, _grouped(rows, by, x, y, str), x=x, y=y, **layout)


def across(title: str, rows: Rows, *, by: str, names: Sequence[str], x: Axis = "", y: Axis = "") -> Plot:
    """Draw rows that have a column for each place `names` on the x-axis: a line for each value of column `by`."""
    places = [name if (one := number(name)) is None else one for name in names]
    values = {str(row[by]): [nan if (one := number(row[name])) is None else one for name in names] for row in rows}
    return lines(title, {of: (np.array(places), some) for of, some in values.items()}, x=x, y=y)


def each(rows: Rows, by: str, draw: Callable[[str, Rows], Plot]) -> list[Plot]:
    """Return a plot for each value of column `by`, which `draw` gets with its rows."""
    return [draw(str(value), [row for row in rows if row[by] == value]) for value in dict.fromkeys(r[by] for r in rows)]


def _grouped(
    rows: Rows, by: str, x: str, y: str, place: Callable[[object], Any]
) -> Mapping[str, tuple[list[Any], list[float]]]:
    found: dict[str, tuple[list[Any], list[float]]] = {}
    for row in rows:
        if (value := number(row.get(y, ""))) is not None:
            places, values = found.setdefault(str(row[by]), ([], []))
            places.append(place(row[x]))
            values.append(value)
    return found
