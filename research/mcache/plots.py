"""Figures 6 to 10 of mCache as plots, and memory against loading time."""

from latebind.bench.report import SHARES, Plot, bars, lines
from research.mcache.parts import Found
from research.mcache.report import loading, shares_within
from research.mcache.sides import TIMES, Bound, Cell, Side

MEMORY = "share of all models' memory"


def latency_figures(found: Found, execution: float) -> list[Plot]:
    """Draw mean latency over memory for each workload, requests one after another (figures 6, 7 and table 3)."""
    figures = []
    for workload in dict.fromkeys(case.workload for case in found):
        curves = {}
        for side, points in _lines(found, workload).items():
            loads = {share: load.mean() for share, cells in points.items() if (load := loading(cells)) is not None}
            curves[side.label] = (list(loads), [load + execution for load in loads.values()])
        figures.append(lines(f"{workload}: latency without queueing", curves, x=MEMORY, y="mean latency, s"))
    return figures


def hit_figure(found: Found, workload: str) -> Plot:
    """Draw hit ratios over memory (figure 9)."""
    ratios = {}
    for side, points in _lines(found, workload).items():
        if not isinstance(side, Bound):
            some = {share: [c.hits for c in cells if c] for share, cells in points.items() if None not in cells}
            ratios[side.label] = (
                [f"{share:.0%}" for share in some],
                [sum(hits) / len(hits) for hits in some.values()],
            )
    y = {"title": "all of the model in memory", "tickformat": ".0%"}
    return bars(f"{workload}: hits", ratios, x=MEMORY, y=y)


def distribution_figures(found: Found) -> list[Plot]:
    """Draw the share of requests that load for no longer than so many seconds (figure 8)."""
    figures = []
    for case, sides in found.items():
        within = {side.label: shares_within(cells) for side, cells in sides.items()}
        curves = {label: (TIMES, shares) for label, shares in within.items() if shares is not None}
        title, y = f"{case.workload}, {case.share:.0%} of the memory", {"title": "share of requests", **SHARES}
        figures.append(lines(title, curves, x="loading time, s", y=y, mode="lines"))
    return figures


def _lines(found: Found, workload: str) -> dict[Side, dict[float, list[Cell | None]]]:
    lines: dict[Side, dict[float, list[Cell | None]]] = {}
    for case, sides in found.items():
        if case.workload == workload:
            for side, cells in sides.items():
                lines.setdefault(side, {})[case.share] = list(cells)
    return lines
