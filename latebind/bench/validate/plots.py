"""Latencies live and simulated as plots: their distributions, and quantile against quantile."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from latebind.bench.validate.report import Load

POINTS = 400
SHARES = np.linspace(0.0, 1.0, POINTS + 2)[1:-1]


def distribution_figure(load: Load) -> go.Figure:
    """Draw the share of requests that were answered within a time, live and simulated."""
    figure = go.Figure()
    for name, seconds in (("live", load.live), ("simulated", load.simulated)):
        figure.add_scatter(x=np.quantile(seconds, SHARES) * 1e3, y=SHARES, name=name, mode="lines")
    figure.update_xaxes(title="latency, ms", type="log")
    figure.update_yaxes(title="share of requests", range=[0, 1.01], tickformat=".0%")
    return _titled(figure, f"{load.model}, {load.policy}")


def quantile_figure(loads: Sequence[Load]) -> go.Figure:
    """Draw quantiles of simulated latencies over the same of live ones: on the diagonal they are alike."""
    figure = go.Figure()
    ends = []
    for load in loads:
        live, simulated = (np.quantile(seconds, SHARES) * 1e3 for seconds in (load.live, load.simulated))
        figure.add_scatter(x=live, y=simulated, name=f"{load.model}, {load.policy}", mode="lines")
        ends += [float(live[0]), float(live[-1])]
    diagonal = [min(ends), max(ends)]
    figure.add_scatter(x=diagonal, y=diagonal, name="alike", mode="lines", line={"dash": "dot", "color": "#7f7f7f"})
    figure.update_xaxes(title="live, ms", type="log")
    figure.update_yaxes(title="simulated, ms", type="log")
    return _titled(figure, "Quantile against quantile")


def _titled(figure: go.Figure, title: str) -> go.Figure:
    figure.update_layout(title=title, template="plotly_white", height=420)
    return figure
