"""Tables and a plot of `python -m research cluster`."""

from statistics import fmean

from latebind.bench.report import MARKED, Plot, blank
from latebind.cli.console import Row, Rows
from research.cluster.placement import SIDES, Contest

OTHERS = ("usual", "random homes, our router")


def gain_rows(found: Contest) -> Rows:
    """Return for each share of memory the gain of ours over the best of the others."""
    rows: Rows = []
    for share in found.figures:
        row: Row = {"memory": f"{share:g}", "ours, in time": _best(found, share, "ours")}
        for side in OTHERS:
            row[f"best of: {side}"] = _best(found, share, side)
            row["times" if side == "usual" else "times that"] = str(found.gain(share, side))
        row["fewer machines than usual"] = found.machines_saved(share).written(".0%")
        rows.append(row)
    return rows


def side_rows(found: Contest) -> Rows:
    """Return every way with each share of memory: the share in time, and loads a second."""
    rows: Rows = []
    for side, ways in SIDES.items():
        for way in ways:
            row: Row = {"side": side, "router/placement/residency": way.label}
            for share, sides in found.figures.items():
                loads = fmean(one.loads for one in sides[way])
                row[f"{share:g}"] = f"{fmean(one.in_time for one in sides[way]):.2%} ({loads:.3g} loads/s)"
            rows.append(row)
    return rows


def contest_figure(found: Contest) -> Plot:
    """Draw the share of answers in time over the share of memory, of each side the best way."""
    x, y = "memory of all machines, over what the models take once", {"title": "answers in time", "tickformat": ".0%"}
    figure = blank(f"{found.machines} machines, each side at its best", x=x, y=y)
    shares = list(found.figures)
    for side, dash in zip(SIDES, ("solid", "dash", "dot", "dashdot"), strict=True):
        best = [found.figures[share][found.best(share, side)] for share in shares]
        values = [fmean(one.in_time for one in some) for some in best]
        figure.add_scatter(x=shares, y=values, name=side, mode=MARKED, line_dash=dash)
    return figure


def _best(found: Contest, share: float, side: str) -> str:
    way = found.best(share, side)
    label = "" if side == "ours" else f" {way.label}"
    return f"{fmean(one.in_time for one in found.figures[share][way]):.2%}{label}"
