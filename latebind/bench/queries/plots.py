"""Figures 11 and 12 as plots, and accuracy beside latency."""

from collections.abc import Sequence

import plotly.graph_objects as go

from latebind.bench.queries.parts import Found
from latebind.bench.queries.report import gain, models
from latebind.bench.queries.sides import EVERY, baseline, replanned
from latebind.bench.queries.traffic import FACES, STEPS, TABLE_5, VEHICLES


def benefit_figures(found: Found) -> Sequence[go.Figure]:
    """Draw what replanning gains each planner by deadline (figure 11), and accuracy over mean latency."""
    benefit, plane = go.Figure(), go.Figure()
    deadlines = [1e3 * deadline for deadline in found]
    for name in EVERY:
        gains = [gain(sides[replanned(name)], sides[baseline(name)]) for sides in found.values()]
        benefit.add_scatter(x=deadlines, y=gains, name=name, mode="lines+markers")
    for side in next(iter(found.values())):
        results = [sides[side] for sides in found.values()]
        plane.add_scatter(
            x=[1e3 * result.seconds.mean() for result in results],
            y=[100 * result.right().mean() for result in results],
            text=[f"{deadline:g} ms" for deadline in deadlines],
            name=side.label,
            mode="lines+markers",
        )
    benefit.update_xaxes(title="deadline, ms")
    benefit.update_yaxes(title="points, against the planner's own baseline")
    plane.update_xaxes(title="mean latency, ms")
    plane.update_yaxes(title="right in time, %")
    return [
        _titled(benefit, "Accuracy gained by replanning (figure 11)"),
        _titled(plane, "Accuracy and latency, a mark for each deadline"),
    ]


def model_figures(found: Found) -> Sequence[go.Figure]:
    """Draw which models answered, baseline beside replanned, for faces and vehicles (figure 12)."""
    return [_models_figure(found, name, step) for name in EVERY for step in (FACES, VEHICLES)]


def _models_figure(found: Found, name: str, step: int) -> go.Figure:
    figure = go.Figure()
    bars = [(deadline, side) for deadline in found for side in (baseline(name), replanned(name))]
    labels = [
        [f"{1e3 * deadline:g} ms" for deadline, _ in bars],
        ["replanned" if side.caches else "baseline" for _, side in bars],
    ]
    for timed in TABLE_5[step]:
        shares = [100 * models(found[deadline][side], step).get(timed.name, 0.0) for deadline, side in bars]
        figure.add_bar(x=labels, y=shares, name=timed.name)
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="% of requests that ran it")
    return _titled(figure, f"Who answered, {STEPS[step]}, {name} (figure 12)")


def _titled(figure: go.Figure, title: str) -> go.Figure:
    return figure.update_layout(title=title, template="plotly_white", height=420)
