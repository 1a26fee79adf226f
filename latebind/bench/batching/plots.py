"""Latency by load as plots (LazyBatching, figure 12)."""

from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from latebind.bench.batching.report import cells, ratio_rows
from latebind.bench.batching.sides import Group
from latebind.bench.batching.simulated import Result
from latebind.bench.page import write_plots

DRAWN = (Group.WINDOW, Group.ZERO, Group.LEAVING, Group.LAZY, Group.ORACLE, Group.OURS)


def write_batching_page(runs: Sequence[Result], file: Path) -> None:
    """Write ratios and plots of runs at several loads; plotly's script is inside the page."""
    text = "Simulated on the accelerator of LazyBatching's table I; baselines are the best of their kind at each load."
    write_plots(file, "Batching policies by load", text, [ratio_rows(runs)], load_figures(runs))


def load_figures(runs: Sequence[Result]) -> list[go.Figure]:
    """Draw mean latency over load for each network: of baselines the best at each load."""
    lines: dict[tuple[str, ...], dict[Group, list[tuple[float, float]]]] = {}
    for (networks, load), cell in cells(runs).items():
        for group in DRAWN:
            some = [figure.mean for figure in cell.values() if figure.group is group]
            if some:
                lines.setdefault(networks, {}).setdefault(group, []).append((load, min(some) * 1e3))
    figures = []
    for networks, by_group in lines.items():
        figure = go.Figure()
        for group, points in by_group.items():
            figure.add_scatter(x=[x for x, _ in points], y=[y for _, y in points], name=group, mode="lines+markers")
        figure.update_xaxes(title="requests a second", type="log")
        figure.update_yaxes(title="mean latency, ms", type="log")
        figure.update_layout(title=", ".join(networks), template="plotly_white", height=420)
        figures.append(figure)
    return figures
