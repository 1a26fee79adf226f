"""The picture of a plan: goodput over machines for each way to run them, and where memory or compute binds."""

from collections.abc import Sequence
from statistics import fmean

import plotly.graph_objects as go

from latebind.planning.plan import Plan, Point
from latebind.planning.question import Question
from latebind.planning.report import size


def figures(question: Question, plan: Plan) -> list[go.Figure]:
    """Return the plots of a plan."""
    drawn = [_needed(plan)]
    if plan.best is not None:
        drawn = [_curves(question, plan), *drawn, _changes(question, plan)]
    return drawn


def _curves(question: Question, plan: Plan) -> go.Figure:
    """Draw the share in time over machines; the gap between a way and the dotted line is what memory costs."""
    figure = go.Figure()
    for way in question.ways:
        figure.add_scatter(**_line([point for point in plan.curve if point.offer.way == way]), name=way.label)
    figure.add_scatter(**_line(plan.all_in_memory), name="no waiting for models", line_dash="dot", line_color="#7f7f7f")
    figure.add_hline(y=question.target, line_dash="dash", line_color="#d62728", annotation_text="target")
    assert plan.best is not None
    figure.add_vline(x=plan.best.machines, line_dash="dash", line_color="#2ca02c", annotation_text="plan")
    figure.update_yaxes(title="answers in time", tickformat=".0%")
    kind = plan.best.offer.kind
    return _titled(figure, f"In time over machines of kind {kind.name}, {size(kind.memory)} each", "machines")


def _needed(plan: Plan) -> go.Figure:
    """Draw the machines that each offer needs; of the plan, those that compute needs and those that memory adds."""
    rows = [row for row in plan.rows if row.machines is not None]
    names = [f"{row.offer.kind.name} {size(row.offer.kind.memory)}<br>{row.offer.way.label}" for row in rows]
    compute = [min(row.machines or 0, row.all_in_memory or row.machines or 0) for row in rows]
    figure = go.Figure()
    figure.add_bar(x=names, y=compute, name="machines")
    memory = [(row.machines or 0) - least for row, least in zip(rows, compute, strict=True)]
    figure.add_bar(x=names, y=memory, name="of the plan: because of memory")
    figure.update_layout(barmode="stack")
    figure.update_yaxes(title="machines")
    return _titled(figure, "Machines needed, by what binds", "")


def _changes(question: Question, plan: Plan) -> go.Figure:
    figure = go.Figure()
    played = {change.label: fmean(one.in_time for one in some) for change, some in plan.changes if some}
    figure.add_bar(x=list(played), y=list(played.values()), name="in time")
    figure.add_hline(y=question.target, line_dash="dash", line_color="#d62728", annotation_text="target")
    figure.update_yaxes(title="answers in time", tickformat=".0%")
    return _titled(figure, "The plan where things change", "")


def _line(points: Sequence[Point]) -> dict[str, object]:
    shares = [fmean(one.in_time for one in point.figures) for point in points]
    return {"x": [point.machines for point in points], "y": shares, "mode": "lines+markers"}


def _titled(figure: go.Figure, title: str, across: str) -> go.Figure:
    figure.update_xaxes(title=across)
    return figure.update_layout(title=title, template="plotly_white", height=440)
