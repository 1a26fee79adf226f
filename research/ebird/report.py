"""Tables of simulated runs: throughput and latency of elastic batches against the best baseline of each kind."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from research.ebird.parts import RISING, STEP, Found, Split
from research.ebird.sides import PAPERS_WINDOW, Kind, Side
from research.ebird.simulated import AT_LOW, QOS, Figures, Result

BASELINES = (Kind.OPTIMAL, Kind.NO_WAIT, Kind.POOL_ZERO, Kind.POOL_WORKERS)
OURS = (Kind.ELASTIC, Kind.LATE)
WHOLE = slice(None)
PHASES = {"low": slice(0, AT_LOW), "high": slice(AT_LOW, None)}


def throughput_rows(found: Found) -> Rows:
    """Return the highest loads within the target, in requests a second."""
    rows: Rows = []
    for network, sides in found.items():
        row: Row = {"network": network}
        for kind in (*BASELINES, Kind.STATIC, *OURS):
            row[str(kind)] = _told(*best(sides, kind, max), "{:.0f}")
        rows.append(row)
    return rows


def gain_rows(found: Found) -> Rows:
    """Return how much more elastic batches carry (figure 9)."""
    rows: Rows = []
    for network, sides in found.items():
        row: Row = {"network": network}
        for kind in BASELINES:
            row[f"than {kind}"] = more(sides, Kind.ELASTIC, kind)
        rows.append(row)
    means: Row = {"network": "mean"}
    for kind in BASELINES:
        means[f"than {kind}"] = f"{mean_gain(found, Kind.ELASTIC, kind):+.1%}"
    return [*rows, means]


def burst_rows(runs: Sequence[Result]) -> Rows:
    """Return mean latencies at the low and the high load in ms; the best window is that of each load."""
    rows: Rows = []
    for phase, part in PHASES.items():
        for network, sides in mean_latencies(runs, part).items():
            row: Row = {"network": network, "load": phase}
            for kind in (*BASELINES, *OURS):
                row[str(kind)] = _told(*best(sides, kind, min), "{:.1f}", 1e3)
            rows.append(row)
    return rows


def reduction_rows(runs: Sequence[Result]) -> Rows:
    """Return how much less elastic batches take (figure 8), also than with the window that the paper names."""
    rows: Rows = []
    for phase, part in PHASES.items():
        for network, sides in mean_latencies(runs, part).items():
            papers = {side: means for side, means in sides.items() if side.window in (0.0, PAPERS_WINDOW)}
            row: Row = {"network": network, "load": phase}
            row[f"than {PAPERS_WINDOW * 1e3:g} ms wait"] = less(papers, Kind.ELASTIC, Kind.OPTIMAL)
            for kind in BASELINES:
                row[f"than {kind}"] = less(sides, Kind.ELASTIC, kind)
            rows.append(row)
    return rows


def rising_rows(runs: Sequence[Result]) -> Rows:
    """Return the mean latency of each side in each step of a rising load, in ms (figure 2)."""
    steps = {f"{share:g}": slice(STEP * i, STEP * (i + 1)) for i, share in enumerate(RISING)}
    (sides,) = grouped(runs).values()
    rows: Rows = []
    for side, some in sides.items():
        row: Row = {"policy": side.label}
        for step, part in steps.items():
            row[step] = f"{np.stack(some)[:, part].mean() * 1e3:.1f}"
        rows.append(row)
    return rows


def day_rows(runs: Sequence[Result]) -> Rows:
    """Return mean, 99th percentile and the share past the target of a day, at the window with the least mean."""
    rows: Rows = []
    every = grouped(runs)
    for network, means in mean_latencies(runs).items():
        for kind in (*BASELINES, *OURS):
            side, seconds = best(means, kind, min)
            latencies = np.concatenate(every[network][side])
            rows.append(
                {
                    "network": network,
                    "policy": side.label,
                    "mean ms": f"{seconds.mean() * 1e3:.1f}",
                    "p99 ms": f"{np.percentile(latencies, 99) * 1e3:.1f}",
                    "late": f"{(latencies > QOS).mean():.2%}",
                    "elastic takes less": "" if kind is Kind.ELASTIC else less(means, Kind.ELASTIC, kind),
                }
            )
    return rows


def part_rows(found: Found, runs: Sequence[Result]) -> Rows:
    """Return what each part of Ebird brings alone, against optimal wait: throughput, and latency at both loads."""
    latencies = {phase: mean_latencies(runs, part) for phase, part in PHASES.items()}
    rows: Rows = []
    for network, sides in found.items():
        for kind in (Kind.POOL, Kind.WORKERS, Kind.SIZES, Kind.ELASTIC):
            row: Row = {"network": network, "what": str(kind), "/s": _told(*best(sides, kind, max), "{:.0f}")}
            row["more than optimal wait"] = more(sides, kind, Kind.OPTIMAL)
            for phase, means in latencies.items():
                row[f"less at {phase} load"] = less(means[network], kind, Kind.OPTIMAL)
            rows.append(row)
    return rows


def gap_rows(by_gap: Mapping[float, Found]) -> Rows:
    """Return by how much more is carried than by optimal wait, by the time it needs between two batches."""
    rows: Rows = []
    for gap, found in by_gap.items():
        row: Row = {"between batches": f"{gap * 1e3:g} ms"}
        for network, sides in found.items():
            row[network] = f"{_gain(sides, Kind.ELASTIC, Kind.OPTIMAL):+.1%}"
        for kind in (Kind.ELASTIC, Kind.POOL_ZERO):
            row[f"mean, {kind}"] = f"{mean_gain(found, kind, Kind.OPTIMAL):+.1%}"
        rows.append(row)
    return rows


def split_rows(splits: Sequence[Split]) -> Rows:
    """Return what pieces take (figure 6)."""
    return [
        {"pieces": one.pieces, "computed ms": f"{one.computed * 1e3:.1f}", "copied ms": f"{one.copied * 1e3:.2f}"}
        for one in splits
    ]


def mean_latencies(runs: Sequence[Result], part: slice = WHOLE) -> Found:
    """Return the mean latency of a part of each run by network and side, one for each seed."""
    return {
        network: {side: np.array([latencies[part].mean() for latencies in some]) for side, some in sides.items()}
        for network, sides in grouped(runs).items()
    }


def best(
    sides: Mapping[Side, Figures], kind: Kind, choose: Callable[..., tuple[Side, Figures]]
) -> tuple[Side, Figures]:
    """Return the side of a kind whose mean over seeds is the least or the most (`choose`), and its figures."""
    return choose([pair for pair in sides.items() if pair[0].kind is kind], key=lambda pair: pair[1].mean())


def more(sides: Mapping[Side, Figures], ours: Kind, theirs: Kind) -> str:
    """Write how much more one kind carries than another, with the interval over seeds."""
    return ratio_of_means(best(sides, ours, max)[1], best(sides, theirs, max)[1]).change()


def less(sides: Mapping[Side, Figures], ours: Kind, theirs: Kind) -> str:
    """Write how much less one kind takes than another, with the interval over seeds."""
    ratio = ratio_of_means(best(sides, ours, min)[1], best(sides, theirs, min)[1])
    return f"{1.0 - ratio.value:.1%} [{100 - 100 * ratio.high:.1f}, {100 - 100 * ratio.low:.1f}]"


def mean_gain(found: Found, ours: Kind, theirs: Kind) -> float:
    """Return the mean over networks of how much more is carried, as the paper takes it."""
    return float(np.mean([_gain(sides, ours, theirs) for sides in found.values()]))


def _gain(sides: Mapping[Side, Figures], ours: Kind, theirs: Kind) -> float:
    return float(best(sides, ours, max)[1].mean() / best(sides, theirs, max)[1].mean()) - 1.0


def grouped(runs: Sequence[Result]) -> dict[str, dict[Side, list[Figures]]]:
    """Return latencies by network and side, a row for each seed."""
    found: dict[str, dict[Side, list[Figures]]] = {}
    for run in runs:
        found.setdefault(run.task.network, {}).setdefault(run.task.side, []).append(run.latencies)
    return found


def _told(side: Side, figures: Figures, form: str, times: float = 1.0) -> str:
    setting = f" ({side.setting})" if side.setting else ""
    return form.format(figures.mean() * times) + setting
