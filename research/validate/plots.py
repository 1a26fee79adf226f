"""Plots of live and simulated latencies: their distributions, and quantile against quantile."""

from collections.abc import Sequence

import numpy as np

from latebind.bench.report import SHARES, Plot, lines
from research.validate.report import Load

POINTS = 400
QUANTILES = np.linspace(0.0, 1.0, POINTS + 2)[1:-1]


def distribution_figure(load: Load) -> Plot:
    """Draw the share of requests that were answered within a time, live and simulated."""
    both = {"live": load.live, "simulated": load.simulated}
    curves = {name: (np.quantile(seconds, QUANTILES) * 1e3, QUANTILES) for name, seconds in both.items()}
    x, y = {"title": "latency, ms", "type": "log"}, {"title": "share of requests", **SHARES}
    return lines(f"{load.model}, {load.policy}", curves, x=x, y=y, mode="lines")


def quantile_figure(loads: Sequence[Load]) -> Plot:
    """Draw quantiles of simulated latencies over the same of live ones: on the diagonal they are alike."""
    curves = {
        f"{load.model}, {load.policy}": (
            np.quantile(load.live, QUANTILES) * 1e3,
            np.quantile(load.simulated, QUANTILES) * 1e3,
        )
        for load in loads
    }
    x, y = ({"title": f"{kind}, ms", "type": "log"} for kind in ("live", "simulated"))
    figure = lines("Quantile against quantile", curves, x=x, y=y, mode="lines")
    ends = [float(end) for live, _ in curves.values() for end in (live[0], live[-1])]
    diagonal = [min(ends), max(ends)]
    return figure.add_scatter(
        x=diagonal, y=diagonal, name="alike", mode="lines", line={"dash": "dot", "color": "#7f7f7f"}
    )
