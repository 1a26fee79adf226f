"""The parts of mCache's evaluation that need no clock: loading time against LRU in the very same hours, as tables."""

from collections.abc import Sequence

import numpy as np

from latebind.bench.report import Plot
from latebind.bench.rounds import Progress
from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Row, Rows
from research import plots
from research.evaluation import Found
from research.mcache.models import TABLE_3
from research.mcache.play import (
    KNOWN,
    LATE,
    LRU,
    RATES,
    WHOLE,
    Bound,
    Case,
    Cells,
    Plan,
    Played,
    Policy,
    Side,
    policy,
)
from research.mcache.traces import HALVES, HTTP, TIMER, Pairing
from research.sides import Figures

USUAL = (0.4, 0.6, 0.8)  # shares of the memory that all models take, as in table 3
FIGURE_6 = (0.2, *USUAL, 1.0)
FEW = (0.2, 0.4)  # of many models
NOTHING = "does not fit"
MEANS = ("load s", "hits", "latency s", "loading", "/s")


def table(plan: Plan, sides: Sequence[Side], on_progress: Progress) -> Found:
    """Play all sides (table 3, figures 6 and 9)."""
    played = plan.play(plan.sevens(), [LRU, *[side for side in sides if side != LRU]], FIGURE_6, on_progress)
    return _by_workload("one request after another (table 3, figures 6, 9)", plan, played)


def known(plan: Plan, on_progress: Progress) -> Found:
    """Play `late` with some requests that wait and are known; LRU has no use for them."""
    waiting = [
        policy("late", f"{side.label}, {count} wait", known=count, stages=side.config.stages)
        for side in (LATE, WHOLE)
        for count in KNOWN
    ]
    played = plan.play(plan.sevens(), (LRU, *waiting, Bound.WHOLE, Bound.STREAMING), USUAL, on_progress)
    return _by_workload("requests that wait and are known", plan, played)


def many(plan: Plan, sides: Sequence[Side], on_progress: Progress) -> Found:
    """Play all sides with a model for each service, including those that timers call if the trace has any."""
    scenes = plan.many((HTTP,))
    if any(service.trigger == TIMER for service in plan.services):
        scenes += plan.many((HTTP, TIMER))
    some = [LRU, *[side for side in sides if side != LRU], Bound.STREAMING]
    return _by_workload("a model for each service", plan, plan.play(scenes, some, FEW, on_progress))


def bounds(plan: Plan, on_progress: Progress) -> Found:
    """Play `late`, whole, in pieces and told all rates, beside the least that is possible, and how far above it."""
    played = plan.play(plan.sevens(), (LRU, WHOLE, LATE, RATES, *Bound), USUAL, on_progress)
    rows: Rows = []
    for case, sides in played.items():
        loads = {side: loading(cells) for side, cells in sides.items()}
        row: Row = {"workload": case.workload, "memory": f"{case.share:.0%}"}
        row |= {side.label: NOTHING if load is None else f"{load.mean():.2f}" for side, load in loads.items()}
        for side, load in loads.items():
            if isinstance(side, Policy):
                row[f"{side.label} above it"] = against(load, loads[Bound.STREAMING])
        rows.append(row)
    return Found({"mean loading time in s beside the least possible": rows})


def _by_workload(title: str, plan: Plan, played: Played) -> Found:
    """Return a table for each workload, and its latencies over memory as a plot."""
    workloads = dict.fromkeys(case.workload for case in played)
    tables = {f"{workload}: {title}": table_rows(played, workload, plan.execution) for workload in workloads}
    rows = [row for some in tables.values() for row in some]

    def draw(workload: str, some: Rows) -> Plot:
        return plots.curves(f"{workload}: latency without queueing", some, by="policy", x="memory", y="latency s")

    return Found(tables, lambda: plots.each(rows, "workload", draw))


def table_rows(played: Played, workload: str, execution: float) -> Rows:
    """Return every side of a workload; latency and throughput are those of requests one after another."""
    return [
        _row(case, side, sides.get(LRU, ()), cells, execution)
        for case, sides in played.items()
        if case.workload == workload
        for side, cells in sides.items()
    ]


def _row(case: Case, side: Side, lru: Cells, cells: Cells, execution: float) -> Row:
    load, base = loading(cells), loading(lru) if side != LRU else None
    row: Row = {"workload": case.workload, "memory": f"{case.share:.0%}", "policy": side.label}
    row |= dict.fromkeys(MEANS, "")
    if load is not None:
        seconds, hits = float(load.mean()), float(np.mean([cell.hits for cell in cells if cell is not None]))
        row |= {"load s": f"{seconds:.2f}", "hits": "" if np.isnan(hits) else f"{hits:.3f}"}
        row |= {"latency s": f"{seconds + execution:.2f}", "loading": f"{seconds / (seconds + execution):.0%}"}
        row["/s"] = f"{1 / (seconds + execution):.3f}"
    row["against lru"] = against(load, base) if load is not None else NOTHING
    for half in range(HALVES):
        some = [None if one is None else np.split(one, HALVES)[half] for one in (load, base)]
        row[f"half {half + 1}"] = against(*some)
    return row | _papers(case, side)


def _papers(case: Case, side: Side) -> Row:
    """Return the paper's figures for this workload (table 3)."""
    if case.workload != Pairing.RANDOM:
        return {}
    theirs = TABLE_3.get((side.label, case.share))
    if theirs is None:
        return {"paper's s": "", "paper's, against lru": ""}
    return {"paper's s": f"{theirs:.2f}", "paper's, against lru": f"{theirs / TABLE_3['lru', case.share] - 1:+.0%}"}


def loading(cells: Cells) -> Figures | None:
    """Return mean seconds of loading, one for each half and seed; nothing where a model did not fit."""
    some = [cell.loading for cell in cells if cell is not None]
    return np.array(some) if some and len(some) == len(cells) else None


def against(load: Figures | None, base: Figures | None) -> str:
    """Write how much more or less is loaded, with the interval over paired hours."""
    if load is None or base is None:
        return ""
    return ratio_of_means(load, base).change()
