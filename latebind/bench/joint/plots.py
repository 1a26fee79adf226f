"""Joint runs as plots: answers in time and latency over load, a figure for each deadline."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go

from latebind.bench.joint.report import Block, JointReport
from latebind.bench.live.played import joined
from latebind.bench.page import write_plots


def write_joint_page(report: JointReport, file: Path, text: str) -> None:
    """Write tables and plots; plotly's script is inside the page."""
    tables = [report.kind_rows(), *(report.rows(cell) for cell in report.blocks)]
    write_plots(file, f"Exits, batching and deadlines: {report.model}", text, tables, joint_figures(report))


def joint_figures(report: JointReport) -> list[go.Figure]:
    """Draw goodput and mean latency of each side over load."""
    figures = []
    for deadline in sorted({cell.deadline for cell in report.blocks}):
        due = f"due after {deadline:g} times what the base model takes alone"
        figures.append(_figure(report, deadline, _goodput, f"Answers in time a second, {due}"))
        figures.append(_figure(report, deadline, _mean, f"Mean latency of what was answered, ms, {due}"))
    return figures


def _figure(report: JointReport, deadline: float, of: Callable[[Sequence[Block]], float], title: str) -> go.Figure:
    figure = go.Figure()
    cells = sorted(cell for cell in report.blocks if cell.deadline == deadline)
    for side in report.contenders:
        points = [of(report.blocks[cell][side]) for cell in cells]
        figure.add_scatter(x=[cell.load for cell in cells], y=points, name=side, mode="lines+markers")
    figure.update_xaxes(title="load, of what the base model does at most", tickformat=".0%")
    figure.update_layout(title=title, template="plotly_white", height=460)
    return figure


def _goodput(blocks: Sequence[Block]) -> float:
    return float(np.mean([block.goodput for block in blocks]))


def _mean(blocks: Sequence[Block]) -> float:
    played = joined([block.played for block in blocks])
    return float(played.seconds[played.answered].mean() * 1e3) if played.answered.any() else float("nan")
