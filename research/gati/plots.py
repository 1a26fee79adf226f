"""Plots of a run along a stream: latency and agreement with the base model."""

from pathlib import Path

from latebind.bench.report import Plot, lines, write_plots
from research.gati.locality import LocalityReport

STEP = 500  # requests of each point along a stream


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
