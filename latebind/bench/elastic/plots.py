"""Figures 2, 6, 8 and 9 of Ebird as plots."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from latebind.bench.elastic.parts import Found, Split
from latebind.bench.elastic.report import BASELINES, OURS, PHASES, best, grouped, mean_latencies
from latebind.bench.elastic.simulated import QOS, Result

DRAWN = (*BASELINES, *OURS)


def rising_figure(runs: Sequence[Result]) -> go.Figure:
    """Draw latency by arrival order while the load rises, the mean over seeds (figure 2)."""
    figure = go.Figure()
    ((network, sides),) = grouped(runs).items()
    for side, latencies in sides.items():
        figure.add_scatter(y=np.mean(latencies, axis=0) * 1e3, name=side.label, mode="lines")
    figure.add_hline(y=QOS * 1e3, line_dash="dot")
    figure.update_xaxes(title="request, in the order of arrival")
    return _titled(figure, f"{network} while the load rises", "mean latency, ms")


def burst_figures(runs: Sequence[Result]) -> list[go.Figure]:
    """Draw mean latencies by network at the low and at the high load (figure 8)."""
    figures = []
    for phase, part in PHASES.items():
        figure = go.Figure()
        found = mean_latencies(runs, part)
        for kind in DRAWN:
            means = [float(best(sides, kind, min)[1].mean() * 1e3) for sides in found.values()]
            figure.add_bar(x=list(found), y=means, name=str(kind))
        figures.append(_titled(figure, f"Latency at the {phase} load", "mean latency, ms"))
    return figures


def throughput_figure(found: Found) -> go.Figure:
    """Draw the highest loads within the target by network (figure 9)."""
    figure = go.Figure()
    for kind in DRAWN:
        loads = [float(best(sides, kind, max)[1].mean()) for sides in found.values()]
        figure.add_bar(x=list(found), y=loads, name=str(kind))
    return _titled(figure, "Throughput with 99 % within 200 ms", "requests a second")


def split_figure(splits: Sequence[Split]) -> go.Figure:
    """Draw what pieces take (figure 6)."""
    figure = go.Figure()
    pieces = [one.pieces for one in splits]
    figure.add_scatter(x=pieces, y=[one.computed * 1e3 for one in splits], name="computed", mode="lines+markers")
    figure.add_scatter(x=pieces, y=[one.copied * 1e3 for one in splits], name="copied", mode="lines+markers")
    figure.update_xaxes(title="pieces", type="log")
    return _titled(figure, "256 inferences and inputs in pieces", "ms")


def _titled(figure: go.Figure, title: str, unit: str) -> go.Figure:
    figure.update_yaxes(title=unit)
    return figure.update_layout(title=title, template="plotly_white", height=420)
