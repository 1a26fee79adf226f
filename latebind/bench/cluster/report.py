"""What `bench cluster` found, as rows of tables."""

from statistics import fmean

from latebind.bench.cluster.placement import BASELINES, OURS, Contest

Rows = list[dict[str, object]]


def gain_rows(found: Contest) -> Rows:
    """Return for each share of memory what ours gains on the best baseline."""
    rows: Rows = []
    for share, sides in found.figures.items():
        best = found.best_baseline(share)
        rows.append(
            {
                "memory over models": f"{share:g}",
                "ours in time": f"{fmean(one.in_time for one in sides[OURS]):.2%}",
                "best baseline": best.label,
                "in time": f"{fmean(one.in_time for one in sides[best]):.2%}",
                "times the goodput": str(found.gain(share)),
                "fewer machines at its goodput": _percents(found, share),
            }
        )
    return rows


def side_rows(found: Contest) -> Rows:
    """Return every side with each share of memory: the share in time, and loads a second."""
    rows: Rows = []
    for way in next(iter(found.figures.values())):
        kind = "ours" if way == OURS else "baseline" if way in BASELINES else "ours in part"
        row: dict[str, object] = {"side": kind, "router/placement/residency": way.label}
        for share, sides in found.figures.items():
            loads = fmean(one.loads for one in sides[way])
            row[f"{share:g}"] = f"{fmean(one.in_time for one in sides[way]):.2%} ({loads:.3g} loads/s)"
        rows.append(row)
    return rows


def _percents(found: Contest, share: float) -> str:
    saved = found.machines_saved(share)
    return f"{saved.value:.0%} [{saved.low:.0%}, {saved.high:.0%}]"
