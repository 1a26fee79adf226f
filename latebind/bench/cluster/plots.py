"""Goodput over memory for every side of the contest."""

from statistics import fmean

import plotly.graph_objects as go

from latebind.bench.cluster.placement import SIDES, Contest


def contest_figures(found: Contest) -> list[go.Figure]:
    """Draw the share of answers in time over the share of memory, of each side the best way."""
    figure = go.Figure()
    shares = list(found.figures)
    for side, dash in zip(SIDES, ("solid", "dash", "dot", "dashdot"), strict=True):
        best = [found.figures[share][found.best(share, side)] for share in shares]
        values = [fmean(one.in_time for one in some) for some in best]
        figure.add_scatter(x=shares, y=values, name=side, mode="lines+markers", line_dash=dash)
    figure.update_xaxes(title="memory of all machines, over what the models take once")
    figure.update_yaxes(title="answers in time", tickformat=".0%")
    title = f"{found.machines} machines, each side at its best"
    return [figure.update_layout(title=title, template="plotly_white", height=460)]
