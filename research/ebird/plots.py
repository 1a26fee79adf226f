"""Figures 2, 6, 8 and 9 of Ebird as plots."""

from collections.abc import Sequence

import numpy as np

from latebind.bench.report import Plot, bars, lines
from research.ebird.parts import Found, Split
from research.ebird.report import BASELINES, OURS, PHASES, best, grouped, mean_latencies
from research.ebird.simulated import QOS, Result

DRAWN = (*BASELINES, *OURS)
MEAN = "mean latency, ms"


def rising_figure(runs: Sequence[Result]) -> Plot:
    """Draw latency by arrival order while the load rises, the mean over seeds (figure 2)."""
    ((network, sides),) = grouped(runs).items()
    means = {side.label: np.mean(latencies, axis=0) * 1e3 for side, latencies in sides.items()}
    curves = {label: (np.arange(len(values)), values) for label, values in means.items()}
    x = "request, in the order of arrival"
    return lines(f"{network} while the load rises", curves, x=x, y=MEAN, mode="lines").add_hline(
        y=QOS * 1e3, line_dash="dot"
    )


def burst_figures(runs: Sequence[Result]) -> list[Plot]:
    """Draw mean latencies by network at the low and at the high load (figure 8)."""
    figures = []
    for phase, part in PHASES.items():
        found = mean_latencies(runs, part)
        means = {
            str(kind): (list(found), [float(best(sides, kind, min)[1].mean() * 1e3) for sides in found.values()])
            for kind in DRAWN
        }
        figures.append(bars(f"Latency at the {phase} load", means, y=MEAN))
    return figures


def throughput_figure(found: Found) -> Plot:
    """Draw the highest loads within the target by network (figure 9)."""
    loads = {
        str(kind): (list(found), [float(best(sides, kind, max)[1].mean()) for sides in found.values()])
        for kind in DRAWN
    }
    return bars("Throughput with 99 % within 200 ms", loads, y="requests a second")


def split_figure(splits: Sequence[Split]) -> Plot:
    """Draw what pieces take (figure 6)."""
    pieces = [one.pieces for one in splits]
    computed, copied = ([one.computed * 1e3 for one in splits], [one.copied * 1e3 for one in splits])
    curves = {"computed": (pieces, computed), "copied": (pieces, copied)}
    return lines("256 inferences and inputs in pieces", curves, x={"title": "pieces", "type": "log"}, y="ms")
