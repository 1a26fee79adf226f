"""What `bench cluster` found, as rows of tables."""

from statistics import fmean

from latebind.bench.cluster.placement import SIDES, Contest

Rows = list[dict[str, object]]
OTHERS = ("usual", "random homes, our router")


def gain_rows(found: Contest) -> Rows:
    """Return for each share of memory what ours gains on the best of the others."""
    rows: Rows = []
    for share in found.figures:
        row: dict[str, object] = {"memory": f"{share:g}", "ours, in time": _best(found, share, "ours")}
        for side in OTHERS:
            row[f"best of: {side}"] = _best(found, share, side)
            row["times" if side == "usual" else "times that"] = str(found.gain(share, side))
        saved = found.machines_saved(share)
        row["fewer machines than usual"] = f"{saved.value:.0%} [{saved.low:.0%}, {saved.high:.0%}]"
        rows.append(row)
    return rows


def side_rows(found: Contest) -> Rows:
    """Return every way with each share of memory: the share in time, and loads a second."""
    rows: Rows = []
    for side, ways in SIDES.items():
        for way in ways:
            row: dict[str, object] = {"side": side, "router/placement/residency": way.label}
            for share, sides in found.figures.items():
                loads = fmean(one.loads for one in sides[way])
                row[f"{share:g}"] = f"{fmean(one.in_time for one in sides[way]):.2%} ({loads:.3g} loads/s)"
            rows.append(row)
    return rows


def _best(found: Contest, share: float, side: str) -> str:
    way = found.best(share, side)
    label = "" if side == "ours" else f" {way.label}"
    return f"{fmean(one.in_time for one in found.figures[share][way]):.2%}{label}"
