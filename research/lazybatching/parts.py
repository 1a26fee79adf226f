"""The parts of LazyBatching's evaluation: loads (figures 12 to 14), co-location (VI-C), capacity.

Every ratio is given against the mean of untuned windows, the best window of 5 ms or more, and the best of all windows,
without and with leaving early; the best is chosen anew at each load.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from latebind.bench.report import Plot
from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from research import plots
from research.evaluation import Found
from research.lazybatching.simulated import GROWING, JUDGED, Group, Plan, Result, Task, few, shedding, sides
from research.sides import Side

MAIN = ("resnet", "gnmt", "transformer")
COLOCATED = ("resnet", "gnmt", "transformer", "bert")
LOADS = (16.0, 64.0, 128.0, 250.0, 500.0, 1000.0, 1500.0, 2000.0)
LOADS_TOGETHER = (50.0, 100.0, 200.0)
HEAVY = 1000.0
STEP = 1.07  # between two loads when the highest is looked for
MOST_LATE = 0.01
OVERLOAD = 1.2
RUSH = 20_000.0  # requests a second, more than any network here keeps up with
PAST = "*"  # behind a ratio: the baseline does not keep up with the load, so it only tells how long the run was
BASELINES = ("untuned windows", "best of 5 ms or more", "best of all", "best of all, leaving early")


def loads(plan: Plan, networks: Sequence[str], rates: Sequence[float], on_progress: Progress) -> Found:
    """Run every policy at every load (figures 12 to 14)."""
    runs = plan.run(load_tasks(plan, networks, rates), on_progress)
    rows = latency_rows(runs)
    tables = {
        "latency: mean over seeds (25th to 75th percentile)": rows,
        f"times less than the baselines; {PAST} past the baseline's capacity": ratio_rows(runs),
        "geometric mean over the loads that all baselines keep up with": summary_rows(runs),
    }

    def draw(network: str, some: Rows) -> Plot:
        return plots.curves(network, some, by="policy", x="load/s", y="mean ms", type="log")

    return Found(tables, lambda: plots.each(rows, "network", draw))


def load_tasks(plan: Plan, networks: Sequence[str], rates: Sequence[float]) -> list[Task]:
    """Return a run of every policy at every load."""
    return [
        Task((network,), rate, side, 0, plan.requests)
        for network in networks
        for rate in rates
        for side in sides(recurrent=plan.scene.recurrent(network))
    ]


def colocated(plan: Plan, on_progress: Progress) -> Found:
    """Run four networks on one worker, each at the same load (section VI-C)."""
    tasks = [Task(COLOCATED, rate, side, 0, plan.requests) for rate in LOADS_TOGETHER for side in sides(recurrent=True)]
    runs = plan.run(tasks, on_progress)
    return Found(
        {
            f"{', '.join(COLOCATED)} on one worker: times less": ratio_rows(runs),
            "p99 of each, times less than under the baselines with the least mean": tail_rows(runs),
        }
    )


def capacity(plan: Plan, on_progress: Progress) -> Found:
    """Find the throughput of each policy, and what is in time beyond it; runs are three times as long as usual."""

    def at(network: str, side: Side, load: float, *, allowed: float = 0.1) -> list[Result]:
        return plan.run([Task((network,), load, side, 0, 3 * plan.requests, allowed)], lambda text, share: None)

    def late(runs: Sequence[Result]) -> float:
        return float(np.mean([run.late for run in runs]))

    rows: Rows = []
    places = [(network, side) for network in MAIN for side in few(recurrent=plan.scene.recurrent(network))]
    for number, (network, side) in enumerate(places):
        on_progress(f"capacity of {network}, {side.label}", number / len(places))
        saturated = float(np.mean([run.throughput for run in at(network, side, RUSH, allowed=1e9)]))
        highest, load = 0.0, saturated / 2
        while late(at(network, side, load)) <= MOST_LATE:
            highest, load = load, load * STEP
        in_time = 1.0 - late(at(network, shedding(side), OVERLOAD * saturated))
        told = {"highest/s": f"{highest:.0f}", "saturated/s": f"{saturated:.0f}", "in time at 120 %": f"{in_time:.3f}"}
        rows.append({"network": network, "policy": side.label, **told})
    return Found({"the highest load with 1 % after 100 ms; saturated; in time at 1.2 times that, shedding": rows})


class Figure:
    """One policy at one load over all seeds, seconds: means and 99th percentiles of each, the same seeds for all."""

    def __init__(self, runs: Sequence[Result]) -> None:
        self.label, self.group = runs[0].task.side.label, runs[0].task.side.kinds[0]
        self.means, self.tails = np.array([run.mean for run in runs]), np.array([run.p99 for run in runs])
        self.mean, self.p99 = float(self.means.mean()), float(self.tails.mean())
        self.late = float(np.mean([run.late for run in runs]))
        self.kept_up = float(np.mean([run.growth for run in runs])) < GROWING


Cell = Mapping[str, Figure]  # by label of the policy


def cells(runs: Iterable[Result]) -> dict[tuple[tuple[str, ...], float], Cell]:
    """Return the figures of each policy by networks and load."""
    found: dict[tuple[tuple[str, ...], float], dict[str, list[Result]]] = {}
    for run in runs:
        cell = found.setdefault((run.task.networks, run.task.load), {})
        cell.setdefault(run.task.side.label, []).append(run)
    return {key: {label: Figure(some) for label, some in cell.items()} for key, cell in found.items()}


def latency_rows(runs: Sequence[Result]) -> Rows:
    """Return mean (25th to 75th percentile over seeds) and p99 in ms: each judged policy beside the best baselines."""
    rows: Rows = []
    for (networks, load), cell in cells(runs).items():
        for figure in _shown(cell):
            low, high = 1e3 * np.percentile(figure.means, [25, 75])
            rows.append(
                {
                    "network": ", ".join(networks),
                    "load/s": f"{load:g}",
                    "policy": figure.label,
                    "mean ms": f"{figure.mean * 1e3:.2f} ({low:.2f} to {high:.2f})",
                    "p99 ms": f"{figure.p99 * 1e3:.2f}",
                    "late": f"{figure.late:.2%}",
                    "keeps up": "yes" if figure.kept_up else "no",
                }
            )
    return rows


def ratio_rows(runs: Sequence[Result]) -> Rows:
    """Return how many times less each judged policy takes than the baselines: of means, and of p99 the best of each.

    Intervals hold 95 % of what other seeds would give, those of a policy and its baseline drawn together.
    """
    rows: Rows = []
    for (networks, load), cell in cells(runs).items():
        against = _baselines(cell)
        for label, figure in cell.items():
            if figure.group not in JUDGED:
                continue
            row: Row = {"network": ", ".join(networks), "load/s": f"{load:g}", "policy": label}
            for name, some in against.items():
                row[name] = _ratio(some, figure, tail=False) if some else ""
            for name, told in (
                ("best of all", "p99, best of all"),
                ("best of all, leaving early", "p99, leaving early"),
            ):
                row[told] = _ratio(against[name], figure, tail=True) if against[name] else ""
            rows.append(row)
    return rows


def summary_rows(runs: Sequence[Result]) -> Rows:
    """Return the geometric means of the ratios over the loads that every baseline keeps up with."""
    collected: dict[tuple[str, str], dict[str, list[float]]] = {}
    for (networks, _), cell in cells(runs).items():
        for name, some in _baselines(cell).items():
            for label, figure in cell.items():
                if figure.group in JUDGED and some and all(one.kept_up for one in some):
                    key = ", ".join(networks), label
                    collected.setdefault(key, {}).setdefault(name, []).append(_mean(some, name) / figure.mean)
    heads: Rows = [{"network": network, "policy": label} for network, label in collected]
    return [
        head | {name: f"{np.exp(np.mean(np.log(found[name]))):.2f}" if name in found else "" for name in BASELINES}
        for head, found in zip(heads, collected.values(), strict=True)
    ]


def tail_rows(runs: Sequence[Result]) -> Rows:
    """Return how many times less the p99 of each co-located network is than under the baselines with the least mean."""
    rows: Rows = []
    for (networks, load), cell in cells(runs).items():
        some = [run for run in runs if (run.task.networks, run.task.load) == (networks, load)]
        baselines = _baselines(cell)
        for best in (baselines[name][0] for name in BASELINES[2:] if baselines[name]):
            theirs = _tails(some, best.label)
            for label in (label for label, figure in cell.items() if figure.group in JUDGED):
                row: Row = {"load/s each": f"{load:g}", "policy": label, "than": best.label}
                rows.append(
                    row
                    | {name: str(ratio_of_means(theirs[name], tails)) for name, tails in _tails(some, label).items()}
                )
    return rows


def _shown(cell: Cell) -> list[Figure]:
    """Return the best baseline of each kind, and all other sides."""
    found = []
    for group in (Group.WINDOW, Group.ZERO, Group.LEAVING):
        if some := [figure for figure in cell.values() if figure.group == group]:
            found.append(min(some, key=lambda figure: figure.mean))
    return found + [figure for figure in cell.values() if figure.group in (*JUDGED, Group.OTHER)]


def _baselines(cell: Cell) -> dict[str, list[Figure]]:
    """Return the sides over which each baseline takes the mean or the best."""
    window, zero, leaving = (
        [figure for figure in cell.values() if figure.group == group]
        for group in (Group.WINDOW, Group.ZERO, Group.LEAVING)
    )
    early = _best(window + zero + leaving) if leaving else []
    return dict(zip(BASELINES, (window, _best(window), _best(window + zero), early), strict=True))


def _best(some: Sequence[Figure]) -> list[Figure]:
    """Return the figures with the least mean and the least p99, in this order."""
    return [min(some, key=lambda figure: figure.mean), min(some, key=lambda figure: figure.p99)] if some else []


def _tails(runs: Sequence[Result], label: str) -> dict[str, NDArray[np.float64]]:
    """Return the p99 of each network by seed, under one policy."""
    of = [run.models for run in runs if run.task.side.label == label]
    return {name: np.array([models[name][1] for models in of]) for name in of[0]}


def _mean(some: Sequence[Figure], name: str) -> float:
    return float(np.mean([figure.mean for figure in some])) if name == BASELINES[0] else some[0].mean


def _ratio(some: Sequence[Figure], figure: Figure, *, tail: bool) -> str:
    if tail:
        return str(ratio_of_means(some[1].tails, figure.tails)) + ("" if some[1].kept_up else PAST)
    means = np.mean([one.means for one in some], axis=0) if len(some) > 2 else some[0].means
    return str(ratio_of_means(means, figure.means)) + ("" if all(one.kept_up for one in some) else PAST)
