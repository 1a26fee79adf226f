"""A self-contained page of a load run: latency distribution and the accuracy-latency picture. Opens offline."""

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
import plotly.io as pio
from plotly.offline import get_plotlyjs

from latebind.bench.load import LoadReport, Side
from latebind.bench.locality import LocalityReport
from latebind.bench.tables import written

STEP = 500  # requests of each point along a stream
COLOURS = {"off": "#7f7f7f", "on": "#1f77b4"}
STYLE = """
body { font-family: system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 } td, th { padding: .3rem .8rem; text-align: left }
th { border-bottom: 2px solid #222 } td { border-bottom: 1px solid #ccc } p { line-height: 1.5 }
.plot { margin: 2rem 0 } .wide { overflow-x: auto }
"""


def write_page(report: LoadReport, file: Path, *, title: str) -> None:
    """Write the page of a load run; plotly's script is inside it, so nothing is fetched."""
    text = (
        f"{len(report.off.answers)} requests a side at {report.rate:.0f} a second (Poisson, seed {report.seed}), "
        "through HTTP, the same arrivals with exits off and on."
    )
    write_plots(file, title, text, [report.rows()], (latency_figure(report), accuracy_figure(report)))


def write_locality_page(report: LocalityReport, file: Path, *, title: str) -> None:
    """Write the page of a run of `bench.locality`."""
    text = f"{len(report.calls['off'])} requests a side, one after another, paired (seed {report.seed})."
    write_plots(file, title, text, [report.rows()], locality_figures(report))


def write_plots(
    file: Path,
    title: str,
    text: str,
    tables: Sequence[Sequence[Mapping[str, object]]],
    figures: Sequence[go.Figure],
) -> None:
    """Write a page of tables, each of rows with equal keys, and figures."""
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


def locality_figures(report: LocalityReport) -> tuple[go.Figure, go.Figure]:
    """Draw mean latency and fidelity of each side along the stream, over 500 requests each (GATI, figure 10)."""
    latency, fidelity = go.Figure(), go.Figure()
    steps = range(0, len(report.calls["off"]) - STEP + 1, STEP)
    places = [start + STEP / 2 for start in steps]
    for side in report.calls:
        seconds, same = report.engine[side], report.same(side)
        latency.add_scatter(x=places, y=[seconds[i : i + STEP].mean() * 1e3 for i in steps], name=side)
        if side != "off":
            fidelity.add_scatter(x=places, y=[same[i : i + STEP].mean() for i in steps], name=side)
    latency.update_layout(title="Mean latency in the engine, ms", template="plotly_white", height=380)
    fidelity.update_layout(title="Answers equal to the base model's", template="plotly_white", height=380)
    for figure in (latency, fidelity):
        figure.update_xaxes(title="request")
    return latency, fidelity


def latency_figure(report: LoadReport) -> go.Figure:
    """Draw the share of requests answered within a time, for both sides."""
    figure = go.Figure()
    for side in (report.off, report.on):
        seconds = np.sort(side.seconds)
        share = np.arange(1, len(seconds) + 1) / len(seconds)
        colour = COLOURS[side.name]
        figure.add_scatter(x=seconds * 1e3, y=share, name=f"exits {side.name}", line_color=colour, mode="lines")
    figure.update_xaxes(title="latency, ms (from the intended time of sending)", type="log")
    figure.update_yaxes(title="share of requests", range=[0, 1.01], tickformat=".0%")
    figure.update_layout(title="Latency distribution", template="plotly_white", height=420)
    return figure


def accuracy_figure(report: LoadReport) -> go.Figure:
    """Draw agreement with the base model against latency: one mark for each exit, its area the share that leaves there.

    After GATI, figure 6b.
    """
    figure = go.Figure()
    agree = report.off.classes == report.on.classes
    stages = np.array([answer.left_at for answer in report.on.answers])
    seconds = np.array([answer.seconds for answer in report.on.answers])
    for stage, share in report.on.left_at.items():
        here = stages == stage
        figure.add_scatter(
            x=[np.median(seconds[here]) * 1e3],
            y=[agree[here].mean()],
            name=f"left at stage {stage} ({share:.0%})",
            marker={"size": [max(8.0, 60 * share**0.5)], "sizemode": "diameter", "opacity": 0.6},
            mode="markers",
        )
    for side, fidelity, symbol in ((report.off, 1.0, "x"), (report.on, report.fidelity, "star")):
        figure.add_scatter(
            x=[_mean(side)],
            y=[fidelity],
            name=f"exits {side.name}, mean",
            marker={"size": 14, "symbol": symbol, "color": COLOURS[side.name]},
            mode="markers",
        )
    figure.update_xaxes(title="latency, ms", rangemode="tozero")
    figure.update_yaxes(title="agreement with the base model", tickformat=".1%")
    figure.update_layout(title="Accuracy and latency", template="plotly_white", height=460)
    return figure


def _mean(side: Side) -> float:
    return float(side.seconds.mean() * 1e3)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    head = "".join(f"<th>{escape(key)}</th>" for key in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{escape(written(v))}</td>" for v in row.values()) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
