"""Comparisons with peers as plots."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from latebind.bench.peers.goodput import Found
from latebind.bench.peers.identity import Run


def rate_figure(runs: Sequence[Run]) -> go.Figure:
    """Draw requests a second of each side, for every protocol and number of clients; bars are medians."""
    figure = go.Figure()
    cells = list(dict.fromkeys((run.protocol, run.clients) for run in runs))
    names = [f"{protocol}, {clients} clients" for protocol, clients in cells]
    for side in dict.fromkeys(run.side for run in runs):
        rates = [
            [run.loaded.rate for run in runs if (run.protocol, run.clients, run.side) == (*c, side)] for c in cells
        ]
        low, mid, high = (np.array([np.quantile(one or [np.nan], share) for one in rates]) for share in (0.0, 0.5, 1.0))
        spread = {"type": "data", "symmetric": False, "array": high - mid, "arrayminus": mid - low}
        figure.add_bar(x=names, y=mid, name=side, error_y=spread)
    figure.update_yaxes(title="requests a second")
    return figure.update_layout(title="A model that answers what it is given", template="plotly_white", height=460)


def goodput_figure(found: Found, deadline: float) -> go.Figure:
    """Draw the share that is answered in time over the load, a line for each side."""
    figure = go.Figure()
    loads = list(dict.fromkeys(one.load for one in found.played))
    for side in found.capacity:
        here = {
            load: np.concatenate([one.seconds for one in found.played if (one.side, one.load) == (side, load)])
            for load in loads
        }
        shares = [float((here[load] <= deadline).mean()) for load in loads]
        figure.add_scatter(x=loads, y=shares, name=side, mode="lines+markers")
    figure.update_xaxes(title="requests a second, as a share of what the best side answers", tickformat=".0%")
    figure.update_yaxes(title=f"answered within {deadline * 1e3:g} ms", range=[0, 1.02], tickformat=".0%")
    return figure.update_layout(title=f"ResNet-18, {found.backend}", template="plotly_white", height=460)
