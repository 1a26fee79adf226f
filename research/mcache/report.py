"""Tables of plays: mean loading time and figures derived from it, against LRU in the very same hours."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from latebind.bench.statistics import mean_interval, ratio_of_means
from latebind.cli.console import Row, Rows
from latebind.simulation.traces import Pairing
from research.mcache.crowd import Crowded, Server
from research.mcache.decision import Decision
from research.mcache.models import FAMILIES, Family, Storage
from research.mcache.paper import NINE_TENTHS, QUANTILE_LOADING, TABLE_2, TABLE_3, THROUGHPUT
from research.mcache.parts import Case, Found
from research.mcache.scenes import HALVES
from research.mcache.sides import LFU, LRU, TIMES, Bound, Cell, Side

Figures = NDArray[np.float64]
NOTHING = "does not fit"
MEANS = ("load s", "hits", "latency s", "loading", "/s")


def table_rows(found: Found, workload: str, execution: float) -> Rows:
    """Return every side of a workload; latency and throughput are those of requests one after another."""
    rows: Rows = []
    for case, sides in found.items():
        if case.workload == workload:
            rows += [_row(case, side, sides.get(LRU, ()), cells, execution) for side, cells in sides.items()]
    return rows


def _row(case: Case, side: Side, lru: Sequence[Cell | None], cells: Sequence[Cell | None], execution: float) -> Row:
    load, base = loading(cells), loading(lru) if side != LRU else None
    row: Row = {"workload": case.workload, "memory": f"{case.share:.0%}", "policy": side.label}
    row |= dict.fromkeys(MEANS, "") if load is None else _means(load, cells, execution)
    row["against lru"] = against(load, base) if load is not None else NOTHING
    for half in range(HALVES):
        row[f"half {half + 1}"] = against(_half(load, half), _half(base, half))
    return row | _papers(case, side)


def _means(load: Figures, cells: Sequence[Cell | None], execution: float) -> Row:
    seconds, hits = float(load.mean()), float(np.mean([cell.hits for cell in cells if cell is not None]))
    told = (
        f"{seconds:.2f}",
        "" if np.isnan(hits) else f"{hits:.3f}",
        f"{seconds + execution:.2f}",
        f"{seconds / (seconds + execution):.0%}",
        f"{1 / (seconds + execution):.3f}",
    )
    return dict(zip(MEANS, told, strict=True))


def _papers(case: Case, side: Side) -> Row:
    """Return the paper's figures for this workload: table 3, or figure 7."""
    if case.workload == Pairing.QUANTILE:
        share = QUANTILE_LOADING.get(case.share) if side.label == "iam" else None
        return {"paper's loading": "" if share is None else f"{share:.0%}"}
    if case.workload != Pairing.RANDOM:
        return {}
    theirs = TABLE_3.get((side.label, case.share))
    if theirs is None:
        return {"paper's s": "", "paper's, against lru": ""}
    return {"paper's s": f"{theirs:.2f}", "paper's, against lru": f"{theirs / TABLE_3['lru', case.share] - 1:+.0%}"}


def throughput_rows(found: Found, execution: float) -> Rows:
    """Return throughput over that of LFU in the random workload (figure 10)."""
    rows: dict[Side, Row] = {}
    for case, sides in found.items():
        base = loading(sides.get(LFU, ()))
        if case.workload != Pairing.RANDOM or base is None:
            continue
        for side, cells in sides.items():
            load = loading(cells)
            row = rows.setdefault(side, {"policy": side.label})
            row[f"{case.share:.0%}"] = _times(base + execution, load + execution) if load is not None else NOTHING
            if case.share in THROUGHPUT:
                row[f"{case.share:.0%}, paper"] = f"{THROUGHPUT[case.share]}" if side.label == "iam" else ""
    return list(rows.values())


def distribution_rows(found: Found) -> Rows:
    """Return how long the quickest shares of requests load, all hours together (figure 8)."""
    rows: Rows = []
    for case, sides in found.items():
        for side, cells in sides.items():
            row: Row = {"workload": case.workload, "memory": f"{case.share:.0%}", "policy": side.label}
            within = shares_within(cells)
            for share in (0.5, 0.9, 0.99):
                row[f"{share:.0%} within s"] = _first(within, share) if within is not None else NOTHING
            row["paper's 90%"] = f"< {NINE_TENTHS[case.share]:g}" if case.share in NINE_TENTHS else ""
            rows.append(row)
    return rows


def saved_rows(found: Found, at: Sequence[float]) -> Rows:
    """Return how much memory each side needs to load no longer than LRU at each share, interpolated between shares.

    In points of the memory that all models take; each hour by itself.
    """
    rows: Rows = []
    for workload in dict.fromkeys(case.workload for case in found):
        by_share = {case.share: sides for case, sides in found.items() if case.workload == workload}
        for share in at:
            lru = loading(by_share.get(share, {}).get(LRU, ()))
            if lru is None:
                continue
            for side in by_share[share]:
                if side != LRU:
                    rows.append({"workload": workload, "lru has": f"{share:.0%}"} | _saved(by_share, side, lru, share))
    return rows


def _saved(
    by_share: Mapping[float, Mapping[Side, Sequence[Cell | None]]], side: Side, lru: Figures, share: float
) -> Row:
    played = {has: load for has, sides in by_share.items() if (load := loading(sides[side])) is not None}
    needed = np.array(
        [enough(list(played), [load[hour] for load in played.values()], lru[hour]) for hour in range(len(lru))]
    )
    return {
        "policy": side.label,
        "needs": f"{needed.mean():.0%}",
        "points saved": mean_interval(100 * (share - needed)).written("+.1f"),
    }


def enough(shares: Sequence[float], loads: Sequence[float], most: float) -> float:
    """Return the least share at which loading takes at most `most` seconds, by linear interpolation of `shares`.

    Below the first share that was played nothing is known; it is then taken. Where no share is enough: all memory.
    """
    for place, load in enumerate(loads):
        if load <= most:
            if place == 0:
                return shares[0]
            before = loads[place - 1]
            return shares[place - 1] + (shares[place] - shares[place - 1]) * (before - most) / (before - load)
    return 1.0


def bound_rows(found: Found) -> Rows:
    """Return the bounds, and how far sides are above the bound for those that stream."""
    rows: Rows = []
    for case, sides in found.items():
        loads = {side: loading(cells) for side, cells in sides.items()}
        row: Row = {"workload": case.workload, "memory": f"{case.share:.0%}"}
        row |= {side.label: NOTHING if load is None else f"{load.mean():.2f}" for side, load in loads.items()}
        for side, load in loads.items():
            if not isinstance(side, Bound):
                row[f"{side.label} above it"] = against(load, loads[Bound.STREAMING])
        rows.append(row)
    return rows


def crowd_rows(found: Mapping[tuple[str, float], Mapping[Server, Sequence[Crowded]]]) -> Rows:
    """Return what clients see of the whole scheduler; throughput and latency against the first server, same hours."""
    rows: Rows = []
    for (workload, share), servers in found.items():
        base = np.array([(one.throughput, one.mean) for one in next(iter(servers.values()))])
        for server, cells in servers.items():
            own = np.array([(one.throughput, one.mean) for one in cells])
            rows.append(
                {
                    "workload": workload,
                    "memory": f"{share:.0%}",
                    "server": server.label,
                    "/s": f"{own[:, 0].mean():.3f}",
                    "times the first": _times(own[:, 0], base[:, 0]),
                    "mean latency s": f"{own[:, 1].mean():.1f}",
                    "of the first's": _times(own[:, 1], base[:, 1]),
                    "longest wait s": f"{max(one.longest for one in cells):.0f}",
                }
            )
    return rows


def model_rows(family: Family, storage: Storage) -> Rows:
    """Return the models: sizes, stages, penalties."""
    return [
        {
            "model": name,
            "GB": f"{footprint.size / 1e9:.2f}",
            "stages": footprint.stages,
            "largest, MB": f"{max(footprint.sizes) / 1e6:.0f}",
            "loads in s": f"{footprint.penalty:.2f}",
            "parameters, million": f"{sum(FAMILIES[family][name]) / 1e6:.1f}",
        }
        for name, footprint in storage.footprints(family).items()
    ]


def penalty_rows(storage: Storage) -> Rows:
    """Return the measurements of table 2 beside what is assumed here."""
    return [
        {
            "model": cold.model,
            "MB": f"{cold.size / 1e6:.1f}",
            "paper executes in s": f"{cold.execution:.3f}",
            "paper loads in s": f"{cold.loading:.2f}",
            "taken here": f"{storage.fixed + storage.seconds(cold.size):.2f}",
        }
        for cold in TABLE_2
    ]


def decision_rows(decisions: Sequence[Decision]) -> Rows:
    """Return the time until a request that needs room has its victims."""
    return [
        {
            "policy": one.policy,
            "models go": "piece by piece" if one.stages else "whole",
            "models": one.models,
            "median": f"{one.median:.1f}",
            "p99": f"{one.p99:.1f}",
            "longest": f"{one.longest:.0f}",
        }
        for one in decisions
    ]


def loading(cells: Sequence[Cell | None]) -> Figures | None:
    """Return mean seconds of loading, one for each half and seed; nothing where a model did not fit."""
    some = [cell.loading for cell in cells if cell is not None]
    return np.array(some) if some and len(some) == len(cells) else None


def shares_within(cells: Sequence[Cell | None]) -> Figures | None:
    """Return the share of all requests that load for no longer than each of `TIMES`."""
    some = [cell.within for cell in cells if cell is not None]
    return np.mean(some, axis=0) if some and len(some) == len(cells) else None


def against(load: Figures | None, base: Figures | None) -> str:
    """Write how much more or less is loaded, with the interval over paired hours."""
    if load is None or base is None:
        return ""
    return ratio_of_means(load, base).change()


def _times(base: Figures, load: Figures) -> str:
    return ratio_of_means(base, load).written(".2f")


def _half(load: Figures | None, half: int) -> Figures | None:
    return None if load is None else np.split(load, HALVES)[half]


def _first(within: Figures, share: float) -> str:
    place = int(np.searchsorted(within, share))
    return f"{TIMES[place]:.1f}" if place < len(TIMES) else f"> {TIMES[-1]:.0f}"
