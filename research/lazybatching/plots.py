"""Latency by load as plots (LazyBatching, figure 12)."""

from collections.abc import Sequence

from latebind.bench.report import Plot, lines
from research.lazybatching.report import cells
from research.lazybatching.sides import Group
from research.lazybatching.simulated import Result

DRAWN = (Group.WINDOW, Group.ZERO, Group.LEAVING, Group.LAZY, Group.ORACLE, Group.OURS)


def load_figures(runs: Sequence[Result]) -> list[Plot]:
    """Draw mean latency over load for each network: of baselines the best at each load."""
    found: dict[tuple[str, ...], dict[str, tuple[list[float], list[float]]]] = {}
    for (networks, load), cell in cells(runs).items():
        for group in DRAWN:
            some = [figure.mean for figure in cell.values() if figure.group is group]
            if some:
                loads, means = found.setdefault(networks, {}).setdefault(group, ([], []))
                loads.append(load)
                means.append(min(some) * 1e3)
    x, y = ({"title": title, "type": "log"} for title in ("requests a second", "mean latency, ms"))
    return [lines(", ".join(networks), curves, x=x, y=y) for networks, curves in found.items()]
