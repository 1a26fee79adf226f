"""Joint runs as plots: answers in time and latency over load, a figure for each deadline."""

from collections.abc import Callable, Sequence

import numpy as np

from latebind.bench.report import Plot, lines
from research.joint.report import Block, JointReport
from research.live.played import joined


def joint_figures(report: JointReport) -> list[Plot]:
    """Draw goodput and mean latency of each side over load."""
    figures = []
    for deadline in sorted({cell.deadline for cell in report.blocks}):
        due = f"due after {deadline:g} times what the base model takes alone"
        figures.append(_figure(report, deadline, _goodput, f"Answers in time a second, {due}"))
        figures.append(_figure(report, deadline, _mean, f"Mean latency of what was answered, ms, {due}"))
    return figures


def _figure(report: JointReport, deadline: float, of: Callable[[Sequence[Block]], float], title: str) -> Plot:
    cells = sorted(cell for cell in report.blocks if cell.deadline == deadline)
    loads = [cell.load for cell in cells]
    curves = {side: (loads, [of(report.blocks[cell][side]) for cell in cells]) for side in report.contenders}
    return lines(title, curves, x={"title": "load, of what the base model does at most", "tickformat": ".0%"}, y="")


def _goodput(blocks: Sequence[Block]) -> float:
    return float(np.mean([block.goodput for block in blocks]))


def _mean(blocks: Sequence[Block]) -> float:
    played = joined([block.played for block in blocks])
    return float(played.seconds[played.answered].mean() * 1e3) if played.answered.any() else float("nan")
