"""Live runs as plots: latencies, memory over time, throughput, first answers."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from latebind.bench.residency.live.cold import First, Start
from latebind.bench.residency.live.crowd import Crowds, throughput
from latebind.bench.residency.live.trace import Blocks, Plan
from latebind.bench.residency.live.watched import INTERVAL


def latency_figure(blocks: Blocks) -> go.Figure:
    """Draw the share of requests that were answered within a time."""
    figure = go.Figure()
    for name, some in blocks.items():
        seconds = np.sort([call.seconds for block in some for call in block.calls])
        figure.add_scatter(x=seconds * 1e3, y=(1 + np.arange(len(seconds))) / len(seconds), name=name, mode="lines")
    figure.update_xaxes(title="latency, ms", type="log")
    figure.update_yaxes(title="share of requests", range=[0, 1.01], tickformat=".0%")
    return _titled(figure, "Latency")


def memory_figure(blocks: Blocks) -> go.Figure:
    """Draw what each engine took in the first round beside what models may take."""
    figure = go.Figure()
    for name, some in blocks.items():
        sizes = some[0].growth.weights
        times = [INTERVAL * number for number in range(len(sizes))]
        figure.add_scatter(x=times, y=[size / 1e6 for size in sizes], name=name, mode="lines")
        figure.add_hline(y=some[0].budget / 1e6, line_dash="dot", line_color="#7f7f7f")
    figure.update_xaxes(title="seconds")
    figure.update_yaxes(title="pages of weights in the process, MB")
    return _titled(figure, "Memory as seen from outside")


def crowd_figure(crowds: Crowds, plan: Plan) -> go.Figure:
    """Draw answers a second for each share of the memory."""
    figure = go.Figure()
    for name in plan.sides:
        rates = [float(np.mean([throughput(block, plan) for block in sides[name]])) for sides in crowds.values()]
        figure.add_bar(x=[f"{share:.0%}" for share in crowds], y=rates, name=name)
    figure.update_xaxes(title="share of all models' memory")
    figure.update_yaxes(title="answers a second")
    return _titled(figure, "Clients that wait for their answers")


def cold_figure(firsts: Sequence[First]) -> go.Figure:
    """Draw first answers of each model."""
    figure = go.Figure()
    for start in Start:
        some = [one for one in firsts if one.start is start]
        figure.add_box(x=[one.model for one in some], y=[one.seconds * 1e3 for one in some], name=str(start))
    figure.update_layout(boxmode="group")
    figure.update_yaxes(title="first answer, ms", rangemode="tozero")
    return _titled(figure, "First answers")


def _titled(figure: go.Figure, title: str) -> go.Figure:
    return figure.update_layout(title=title, template="plotly_white", height=420)
