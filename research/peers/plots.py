"""Comparisons with peers as plots."""

from collections.abc import Sequence

import numpy as np

from latebind.bench.report import Plot, blank, lines
from research.peers.goodput import Found
from research.peers.identity import Run


def rate_figure(runs: Sequence[Run]) -> Plot:
    """Draw requests a second of each side, for every protocol and number of clients; bars are medians."""
    figure = blank("A model that answers what it is given", y="requests a second")
    cells = list(dict.fromkeys((run.protocol, run.clients) for run in runs))
    names = [f"{protocol}, {clients} clients" for protocol, clients in cells]
    for side in dict.fromkeys(run.side for run in runs):
        rates = [
            [run.loaded.rate for run in runs if (run.protocol, run.clients, run.side) == (*c, side)] for c in cells
        ]
        low, mid, high = (np.array([np.quantile(one or [np.nan], share) for one in rates]) for share in (0.0, 0.5, 1.0))
        spread = {"type": "data", "symmetric": False, "array": high - mid, "arrayminus": mid - low}
        figure.add_bar(x=names, y=mid, name=side, error_y=spread)
    return figure


def goodput_figure(found: Found, deadline: float) -> Plot:
    """Draw the share that is answered in time over the load, a line for each side."""
    loads = list(dict.fromkeys(one.load for one in found.played))
    curves = {}
    for side in found.capacity:
        here = [np.concatenate([o.seconds for o in found.played if (o.side, o.load) == (side, load)]) for load in loads]
        curves[side] = (loads, [float((seconds <= deadline).mean()) for seconds in here])
    x = {"title": "requests a second, as a share of what the best side answers", "tickformat": ".0%"}
    y = {"title": f"answered within {deadline * 1e3:g} ms", "range": [0, 1.02], "tickformat": ".0%"}
    return lines(f"ResNet-18, {found.backend}", curves, x=x, y=y)
