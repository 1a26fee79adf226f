"""Plots of runs with exits off and on: latency, agreement with the base model, and both along a stream."""

from pathlib import Path

import numpy as np

from latebind.bench.chart import Plot, blank, distributions, lines
from latebind.bench.load import LoadReport
from latebind.bench.locality import LocalityReport
from latebind.bench.page import write_plots

STEP = 500  # requests of each point along a stream
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


def write_locality_page(report: LocalityReport, file: Path, *, title: str) -> None:
    """Write the page of a run of `bench.locality`."""
    text = f"{len(report.calls['off'])} requests a side, one after another, paired (seed {report.seed})."
    write_plots(file, title, text, [report.rows()], locality_figures(report))


def locality_figures(report: LocalityReport) -> list[Plot]:
    """Draw mean latency and fidelity of each side along the stream, over 500 requests each (GATI, figure 10)."""
    steps = range(0, len(report.calls["off"]) - STEP + 1, STEP)
    places = [start + STEP / 2 for start in steps]
    seconds = {side: [report.engine[side][i : i + STEP].mean() * 1e3 for i in steps] for side in report.calls}
    same = {side: [report.same(side)[i : i + STEP].mean() for i in steps] for side in report.calls if side != "off"}
    titled = {"Mean latency in the engine, ms": seconds, "Answers equal to the base model's": same}
    return [
        lines(title, {side: (places, values) for side, values in sides.items()}, x="request", y="")
        for title, sides in titled.items()
    ]


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
