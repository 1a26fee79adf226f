"""Figures 6 to 10 of mCache as plots, and memory against loading time."""

import plotly.graph_objects as go

from latebind.bench.residency.parts import Found
from latebind.bench.residency.report import loading, shares_within
from latebind.bench.residency.sides import TIMES, Bound, Cell, Side


def latency_figures(found: Found, execution: float) -> list[go.Figure]:
    """Draw mean latency over memory for each workload, requests one after another (figures 6, 7 and table 3)."""
    figures = []
    for workload in dict.fromkeys(case.workload for case in found):
        figure = go.Figure()
        for side, points in _lines(found, workload).items():
            loads = [(share, load.mean()) for share, cells in points.items() if (load := loading(cells)) is not None]
            seconds = [load + execution for _, load in loads]
            figure.add_scatter(x=[share for share, _ in loads], y=seconds, name=side.label, mode="lines+markers")
        figure.update_yaxes(title="mean latency, s")
        figures.append(_titled(figure, f"{workload}: latency without queueing", "share of all models' memory"))
    return figures


def hit_figure(found: Found, workload: str) -> go.Figure:
    """Draw hit ratios over memory (figure 9)."""
    figure = go.Figure()
    for side, points in _lines(found, workload).items():
        if isinstance(side, Bound):
            continue
        some = {share: [c.hits for c in cells if c is not None] for share, cells in points.items() if None not in cells}
        ratios = [sum(hits) / len(hits) for hits in some.values()]
        figure.add_bar(x=[f"{share:.0%}" for share in some], y=ratios, name=side.label)
    figure.update_yaxes(title="all of the model in memory", tickformat=".0%")
    return _titled(figure, f"{workload}: hits", "share of all models' memory")


def distribution_figures(found: Found) -> list[go.Figure]:
    """Draw the share of requests that load for no longer than so many seconds (figure 8)."""
    figures = []
    for case, sides in found.items():
        figure = go.Figure()
        for side, cells in sides.items():
            within = shares_within(cells)
            if within is not None:
                figure.add_scatter(x=TIMES, y=within, name=side.label, mode="lines")
        figure.update_yaxes(title="share of requests", range=[0, 1.01], tickformat=".0%")
        figures.append(_titled(figure, f"{case.workload}, {case.share:.0%} of the memory", "loading time, s"))
    return figures


def _lines(found: Found, workload: str) -> dict[Side, dict[float, list[Cell | None]]]:
    lines: dict[Side, dict[float, list[Cell | None]]] = {}
    for case, sides in found.items():
        if case.workload == workload:
            for side, cells in sides.items():
                lines.setdefault(side, {})[case.share] = list(cells)
    return lines


def _titled(figure: go.Figure, title: str, across: str) -> go.Figure:
    figure.update_xaxes(title=across)
    return figure.update_layout(title=title, template="plotly_white", height=420)
