"""Live runs of queries as a plot: what is right against how long it takes."""

import numpy as np
import plotly.graph_objects as go

from latebind.bench.queries.live.replanning import Found


def trade_figure(found: Found) -> go.Figure:
    """Draw accuracy against mean latency, a point for each deadline and a line for each side."""
    figure = go.Figure()
    for side in next(iter(found.calls.values())):
        calls = [sides[side] for sides in found.calls.values()]
        figure.add_scatter(
            x=[float(np.mean([call.seconds for call in some])) * 1e3 for some in calls],
            y=[float(np.mean([call.right for call in some])) for some in calls],
            text=[f"due after {deadline * 1e3:.3f} ms" for deadline in found.calls],
            name=side,
            mode="markers+lines",
        )
    figure.update_xaxes(title="mean latency, ms", rangemode="tozero")
    figure.update_yaxes(title="share of right answers", tickformat=".0%")
    figure.update_layout(title="Accuracy against latency, by deadline")
    return figure
