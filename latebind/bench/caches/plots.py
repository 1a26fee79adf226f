"""The comparison of learned caches as one page: distributions, fidelity against latency, sweeps. Opens offline."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from latebind.bench.caches.contest import Outcome, Standings
from latebind.bench.caches.suite import Part, Result
from latebind.bench.page import write_plots


def write_caches_page(results: Sequence[Result], file: Path, *, title: str, text: str) -> None:
    """Write tables and plots of the parts that ran."""
    write_plots(file, title, text, [one.rows for one in results], [plot for one in results for plot in plots(one)])


def plots(result: Result) -> list[go.Figure]:
    """Return the plots of a part; not all have some."""
    match result.part, result.standings:
        case Part.BASELINES, Standings() as found:
            return [distribution(found), fidelity_and_latency(found)]
        case Part.COMPOSITION, Standings() as found:
            alpha = sweep(found, "alpha ", "Weight of hit rates against gains (alpha)")
            return [alpha, sweep(found, "memory ", "Memory for learned caches, MB")]
    return []


def distribution(found: Standings) -> go.Figure:
    """Draw the share of rows answered within a time for each method (GATI, figures 6a and 8a)."""
    figure = go.Figure()
    for one in found.outcomes:
        seconds = np.sort(one.seconds)
        share = np.arange(1, len(seconds) + 1) / len(seconds)
        figure.add_scatter(x=seconds * 1e3, y=share, name=one.name, mode="lines")
    figure.update_xaxes(title="latency, ms", type="log")
    figure.update_yaxes(title="share of rows", range=[0, 1.01], tickformat=".0%")
    figure.update_layout(title="Latency distribution, batch 1, one thread", template="plotly_white", height=460)
    return figure


def fidelity_and_latency(found: Standings) -> go.Figure:
    """Draw fidelity against mean latency, one mark for each method (GATI, figure 6b)."""
    figure = go.Figure()
    for one in found.outcomes:
        figure.add_scatter(
            x=[one.seconds.mean() * 1e3], y=[found.fidelity(one)], name=one.name, mode="markers", marker={"size": 14}
        )
    figure.update_xaxes(title="mean latency, ms", rangemode="tozero")
    figure.update_yaxes(title="agreement with the base model", tickformat=".1%")
    figure.update_layout(title="Fidelity and mean latency", template="plotly_white", height=460)
    return figure


def sweep(found: Standings, prefix: str, axis: str) -> go.Figure:
    """Draw mean latency and fidelity of the methods whose names are `prefix` and a number (GATI, figures 7a and 25)."""
    swept = [one for one in found.outcomes if one.name.startswith(prefix)]
    places = [float(one.name.removeprefix(prefix).split()[0]) for one in swept]
    figure = go.Figure()
    figure.add_scatter(x=places, y=_milliseconds(swept), name="mean latency, ms", mode="lines+markers")
    fidelity = [found.fidelity(one) for one in swept]
    figure.add_scatter(x=places, y=fidelity, name="fidelity", yaxis="y2", mode="lines+markers")
    figure.update_layout(
        title=axis,
        template="plotly_white",
        height=400,
        yaxis={"title": "mean latency, ms", "rangemode": "tozero"},
        yaxis2={"title": "fidelity", "overlaying": "y", "side": "right", "tickformat": ".1%"},
    )
    figure.update_xaxes(title=axis, type="log" if places and min(places) > 0 else "linear")
    return figure


def _milliseconds(outcomes: Sequence[Outcome]) -> list[float]:
    return [float(one.seconds.mean() * 1e3) for one in outcomes]
