"""Plots of runs with exits off and on: latency, and agreement with the base model."""

from pathlib import Path

import numpy as np

from latebind.bench.load import LoadReport
from latebind.bench.report import Plot, blank, distributions, write_plots

COLOURS = {"off": "#7f7f7f", "on": "#1f77b4"}


def write_page(report: LoadReport, file: Path, *, title: str) -> None:
    """Write the page of a load run; plotly's script is inside it, so nothing is fetched."""
    text = (
        f"{len(report.off.answers)} requests a side at {report.rate:.0f} a second (Poisson, seed {report.seed}), "
        "through HTTP, the same arrivals with exits off and on."
    )
    seconds = {f"exits {side.name}": side.seconds for side in (report.off, report.on)}
    latency = distributions("Latency distribution", seconds, x="latency, ms (from the intended time of sending)")
    write_plots(file, title, text, [report.rows()], (latency, accuracy_figure(report)))


def accuracy_figure(report: LoadReport) -> Plot:
    """Draw agreement with the base model against latency: one mark for each exit, its area the share that leaves there.

    After GATI, figure 6b.
    """
    agreement = {"title": "agreement with the base model", "tickformat": ".1%"}
    figure = blank("Accuracy and latency", x={"title": "latency, ms", "rangemode": "tozero"}, y=agreement)
    for stage, share in report.on.left_at.items():
        figure.add_scatter(
            x=[np.median(report.seconds_at(stage)) * 1e3],
            y=[report.fidelity_at(stage)],
            name=f"left at stage {stage} ({share:.0%})",
            marker={"size": [max(8.0, 60 * share**0.5)], "sizemode": "diameter", "opacity": 0.6},
            mode="markers",
        )
    for side, fidelity, symbol in ((report.off, 1.0, "x"), (report.on, report.fidelity, "star")):
        figure.add_scatter(
            x=[float(side.seconds.mean() * 1e3)],
            y=[fidelity],
            name=f"exits {side.name}, mean",
            marker={"size": 14, "symbol": symbol, "color": COLOURS[side.name]},
            mode="markers",
        )
    return figure
