"""Plots of live runs: latency, memory over time, throughput, first answers."""

from collections.abc import Sequence

import numpy as np

from latebind.bench.report import Plot, bars, blank, distributions, lines
from research.mcache.live.cold import First, Start
from research.mcache.live.crowd import Crowds, throughput
from research.mcache.live.trace import Blocks, Plan
from research.mcache.live.watched import INTERVAL


def latency_figure(blocks: Blocks) -> Plot:
    """Draw the share of requests that were answered within a time."""
    seconds = {name: [call.seconds for block in some for call in block.calls] for name, some in blocks.items()}
    return distributions("Latency", seconds)


def memory_figure(blocks: Blocks) -> Plot:
    """Draw what each engine took in the first round beside what models may take."""
    sizes = {name: np.array(some[0].growth.weights) / 1e6 for name, some in blocks.items()}
    curves = {name: (INTERVAL * np.arange(len(some)), some) for name, some in sizes.items()}
    y = "pages of weights in the process, MB"
    figure = lines("Memory as seen from outside", curves, x="seconds", y=y, mode="lines")
    for some in blocks.values():
        figure.add_hline(y=some[0].budget / 1e6, line_dash="dot", line_color="#7f7f7f")
    return figure


def crowd_figure(crowds: Crowds, plan: Plan) -> Plot:
    """Draw answers a second for each share of the memory."""
    shares = [f"{share:.0%}" for share in crowds]
    rates = {
        name: (shares, [float(np.mean([throughput(one, plan) for one in sides[name]])) for sides in crowds.values()])
        for name in plan.sides
    }
    x, y = "share of all models' memory", "answers a second"
    return bars("Clients that wait for their answers", rates, x=x, y=y)


def cold_figure(firsts: Sequence[First]) -> Plot:
    """Draw first answers of each model."""
    figure = blank("First answers", y={"title": "first answer, ms", "rangemode": "tozero"}, boxmode="group")
    for start in Start:
        some = [one for one in firsts if one.start is start]
        figure.add_box(x=[one.model for one in some], y=[one.seconds * 1e3 for one in some], name=str(start))
    return figure
