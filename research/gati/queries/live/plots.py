"""Plots of live runs of queries: accuracy against latency."""

from latebind.bench.report import MARKED, Plot, blank
from research.gati.queries.live.asked import mean
from research.gati.queries.live.replanning import Found


def trade_figure(found: Found) -> Plot:
    """Draw accuracy against mean latency, a point for each deadline and a line for each side."""
    x = {"title": "mean latency, ms", "rangemode": "tozero"}
    y = {"title": "share of right answers", "tickformat": ".0%"}
    figure = blank("Accuracy against latency, by deadline", x=x, y=y)
    for side in next(iter(found.calls.values())):
        calls = [sides[side] for sides in found.calls.values()]
        figure.add_scatter(
            x=[mean([call.seconds for call in some]) * 1e3 for some in calls],
            y=[mean([call.right for call in some]) for some in calls],
            text=[f"due after {deadline * 1e3:.3f} ms" for deadline in found.calls],
            name=side,
            mode=MARKED,
        )
    return figure
