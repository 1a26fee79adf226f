"""Goodput over memory for every side of the contest."""

from statistics import fmean

import plotly.graph_objects as go

from latebind.bench.cluster.placement import BASELINES, OURS, Contest


def contest_figures(found: Contest) -> list[go.Figure]:
    """Draw the share of answers in time over the share of memory."""
    figure = go.Figure()
    shares = list(found.figures)
    for way in found.figures[shares[0]]:
        dash = "solid" if way == OURS else "dash" if way in BASELINES else "dot"
        values = [fmean(one.in_time for one in found.figures[share][way]) for share in shares]
        figure.add_scatter(x=shares, y=values, name=way.label, mode="lines+markers", line_dash=dash)
    figure.update_xaxes(title="memory of all machines, over what the models take once")
    figure.update_yaxes(title="answers in time", tickformat=".0%")
    title = f"{found.machines} machines: solid ours, dashed baselines, dotted ours in part"
    return [figure.update_layout(title=title, template="plotly_white", height=460)]
