"""The parts of Ebird's evaluation: two loads (figure 8), throughput (9), and the time between two batches."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from latebind.bench.rounds import Progress, in_parallel
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from research import plots
from research.ebird.simulated import (
    AT_LOW,
    ELASTIC,
    EVALUATED,
    OPTIMAL,
    PAPERS_WINDOW,
    POOL_ZERO,
    Burst,
    Kind,
    Search,
    Stable,
    Task,
    highest,
    run,
    setting,
)
from research.evaluation import Found
from research.hardware.gpu import SIX, TITAN_RTX, Chip
from research.sides import Figures, Side

LAUNCHES = (0.0, 0.001, 0.005, 0.010, 0.020, 0.040)  # seconds between two batches
BASELINES = (Kind.OPTIMAL, Kind.NO_WAIT, Kind.POOL_ZERO, Kind.POOL_WORKERS)
OURS = (Kind.ELASTIC, Kind.LATE)
PHASES = {"low": slice(0, AT_LOW), "high": slice(AT_LOW, None)}

ByNetwork = Mapping[str, Mapping[Side, Figures]]  # figures by network and side, one for each seed


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is simulated: networks, seeds, seconds of requests of each search, processes (0: one for each core)."""

    networks: tuple[str, ...] = tuple(SIX)
    seeds: int = 5
    seconds: float = 10.0
    low: float = 0.1
    chip: Chip = TITAN_RTX
    processes: int = 0

    def highest(
        self, networks: Sequence[str], sides: Sequence[Side], on_progress: Progress, load: Stable | Burst | None = None
    ) -> ByNetwork:
        """Find the highest load within the target of each side, a stable one unless said otherwise."""
        some = [
            Search(network, side, self.chip, load or Stable(self.seconds), seed)
            for network in networks
            for side in sides
            for seed in range(self.seeds)
        ]
        loads = in_parallel(
            highest, some, name="highest load of {0.network}".format, progress=on_progress, processes=self.processes
        )
        by_seed = np.reshape(loads, (len(networks), len(sides), self.seeds))
        return {
            network: dict(zip(sides, values, strict=True)) for network, values in zip(networks, by_seed, strict=True)
        }

    def bursts(self, on_progress: Progress) -> dict[str, dict[Side, list[Figures]]]:
        """Return the latencies of bursts, by network and side for each seed.

        The low load is the share `low` of the high one, which is the highest that optimal wait carries.
        """
        burst, sides = Burst(self.low), [side for side in EVALUATED if Kind.STATIC not in side.kinds]
        carried = self.highest(self.networks, OPTIMAL, on_progress, burst)
        high = {network: max(float(loads.mean()) for loads in of.values()) for network, of in carried.items()}
        tasks = [
            Task(network, side, burst.at(high[network])[0], self.chip, seed)
            for network in self.networks
            for side in sides
            for seed in range(self.seeds)
        ]
        named = "latency of {0.network}".format
        found: dict[str, dict[Side, list[Figures]]] = {network: {side: [] for side in sides} for network in high}
        for task, one in zip(
            tasks, in_parallel(run, tasks, name=named, progress=on_progress, processes=self.processes), strict=True
        ):
            found[task.network][task.side].append(one)
        return found


def throughput(plan: Plan, on_progress: Progress) -> Found:
    """Find the throughput of all sides within the target (figure 9), and how much more elastic batches carry."""
    found = plan.highest(plan.networks, EVALUATED, on_progress)
    kinds = (*BASELINES, Kind.STATIC, *OURS)
    rows: Rows = [
        {"network": network, **{str(kind): _told(*best(sides, kind, max), "{:.0f}") for kind in kinds}}
        for network, sides in found.items()
    ]
    gains: Rows = [
        {"network": network, **{f"than {kind}": more(sides, Kind.ELASTIC, kind) for kind in BASELINES}}
        for network, sides in found.items()
    ]
    mean: Row = {"network": "mean"}
    gains.append(mean | {f"than {kind}": f"{mean_gain(found, kind):+.1%}" for kind in BASELINES})
    tables = {
        "requests a second with 99 % within the target (figure 9)": rows,
        "more with elastic batches (the paper: 34.4 % than optimal wait)": gains,
    }
    names = [str(kind) for kind in (*BASELINES, *OURS)]
    return Found(tables, lambda: [plots.across("Throughput with 99 % within 200 ms", rows, by="network", names=names)])


def bursts(plan: Plan, on_progress: Progress) -> Found:
    """Run a low and then a high load (figure 8), and compare also with the window that the paper names."""
    runs = plan.bursts(on_progress)
    rows, less_rows = Rows(), Rows()
    for phase, part in PHASES.items():
        for network, every in runs.items():
            sides = {side: np.array([one[part].mean() for one in some]) for side, some in every.items()}
            head: Row = {"network": network, "load": phase}
            kinds = (*BASELINES, *OURS)
            rows.append(head | {str(kind): _told(*best(sides, kind, min), "{:.1f}", 1e3) for kind in kinds})
            papers = {side: means for side, means in sides.items() if side.policy.window in (0.0, PAPERS_WINDOW)}
            named = less(papers, Kind.ELASTIC, Kind.OPTIMAL)
            theirs = {f"than {kind}": less(sides, Kind.ELASTIC, kind) for kind in BASELINES}
            less_rows.append(head | {f"than {PAPERS_WINDOW * 1e3:g} ms wait": named} | theirs)
    tables = {
        "mean ms of 150 requests at a low, then 250 at a high load (figure 8)": rows,
        "less with elastic batches (the paper: 44.6 to 70.9 %, 7.4 to 53.1 %)": less_rows,
    }
    return Found(tables)


def gaps(plan: Plan, on_progress: Progress) -> Found:
    """Find how much more is carried than by optimal wait, by the server's time between two batches.

    Sides with a pool need none.
    """
    pooled = plan.highest(plan.networks, (POOL_ZERO, ELASTIC), on_progress)
    rows: Rows = []
    for gap in LAUNCHES:
        waiting = replace(plan, chip=replace(plan.chip, launch=gap)).highest(plan.networks, OPTIMAL, on_progress)
        found = {network: {**waiting[network], **pooled[network]} for network in plan.networks}
        row: Row = {"between batches": f"{gap * 1e3:g} ms"}
        row |= {network: f"{_gain(sides, Kind.ELASTIC, Kind.OPTIMAL):+.1%}" for network, sides in found.items()}
        for kind in (Kind.ELASTIC, Kind.POOL_ZERO):
            row[f"mean, {kind}"] = f"{mean_gain(found, Kind.OPTIMAL, ours=kind):+.1%}"
        rows.append(row)
    return Found({"elastic carries more than optimal wait, by what this needs between two batches": rows})


def best(
    sides: Mapping[Side, Figures], kind: Kind, choose: Callable[..., tuple[Side, Figures]]
) -> tuple[Side, Figures]:
    """Return the side of a kind whose mean over seeds is the least or the most (`choose`), and its figures."""
    return choose([pair for pair in sides.items() if kind in pair[0].kinds], key=lambda pair: pair[1].mean())


def more(sides: Mapping[Side, Figures], ours: Kind, theirs: Kind) -> str:
    """Write how much more one kind carries than another, with the interval over seeds."""
    return ratio_of_means(best(sides, ours, max)[1], best(sides, theirs, max)[1]).change()


def less(sides: Mapping[Side, Figures], ours: Kind, theirs: Kind) -> str:
    """Write how much less one kind takes than another, with the interval over seeds."""
    ratio = ratio_of_means(best(sides, ours, min)[1], best(sides, theirs, min)[1])
    return f"{1.0 - ratio.value:.1%} [{100 - 100 * ratio.high:.1f}, {100 - 100 * ratio.low:.1f}]"


def mean_gain(found: ByNetwork, theirs: Kind, ours: Kind = Kind.ELASTIC) -> float:
    """Return the mean over networks of how much more is carried, as the paper takes it."""
    return float(np.mean([_gain(sides, ours, theirs) for sides in found.values()]))


def _gain(sides: Mapping[Side, Figures], ours: Kind, theirs: Kind) -> float:
    return float(best(sides, ours, max)[1].mean() / best(sides, theirs, max)[1].mean()) - 1.0


def _told(side: Side, figures: Figures, form: str, times: float = 1.0) -> str:
    told = f" ({setting(side)})" if setting(side) else ""
    return form.format(figures.mean() * times) + told
