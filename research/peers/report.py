"""Tables of comparisons with peers."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from latebind.bench.statistics import ratio_of_means
from latebind.cli.console import Rows
from research.peers.goodput import Found, Played
from research.peers.identity import Run
from research.peers.loads import Loaded
from research.peers.sides import LATEBIND, TRITON


def identity_rows(runs: Sequence[Run], seed: int) -> Rows:
    """Return medians of the rounds for each protocol, number of clients and side; ratios are paired by round."""
    cells = dict.fromkeys((run.protocol, run.clients, run.side) for run in runs)
    rows: Rows = []
    for protocol, clients, side in cells:
        here = [run for run in runs if (run.protocol, run.clients, run.side) == (protocol, clients, side)]
        base = [run for run in runs if (run.protocol, run.clients, run.side) == (protocol, clients, TRITON)]
        rows.append(
            {
                "protocol": str(protocol),
                "clients": clients,
                "side": side,
                "per s": round(_median(here, _rate)),
                f"over {TRITON}": _ratio(here, base, _rate, seed),
                "p50 ms": round(_median(here, lambda one: one.p50) * 1e3, 3),
                "p99 ms": round(_median(here, lambda one: one.p99) * 1e3, 3),
                f"p99 over {TRITON}": _ratio(here, base, lambda one: one.p99, seed),
                "CPU us a request": round(_median(here, lambda one: one.cpu) * 1e6, 1),
                "failed": sum(run.loaded.failed for run in here),
                "others' cores": round(float(np.mean([run.others for run in here])), 2),
            }
        )
    return rows


def goodput_rows(found: Found, deadline: float, seed: int) -> Rows:
    """Return what was answered in time at each load; ours is compared with the best of the others, round by round."""
    rows: Rows = []
    for load in dict.fromkeys(one.load for one in found.played):
        here = [one for one in found.played if one.load == load]
        in_time = {side: _in_time(here, side, deadline) for side in dict.fromkeys(one.side for one in here)}
        others = {side: counts for side, counts in in_time.items() if side != LATEBIND}
        best = max(others, key=lambda side: float(others[side].sum()), default="")
        good = bool(best) and others[best].any()
        for side, counts in in_time.items():
            seconds = np.concatenate([one.seconds for one in here if one.side == side])
            answered = seconds[np.isfinite(seconds)]
            ratio = ratio_of_means(counts, others[best], seed=seed) if side == LATEBIND and good else None
            rows.append(
                {
                    "load": f"{load:.0%}",
                    "side": side,
                    "requests": len(seconds),
                    "in time": f"{counts.sum() / len(seconds):.3f}",
                    "over the best other": f"{ratio} ({best})" if ratio else "",
                    "p50 ms": _percentile(answered, 50),
                    "p99 ms": _percentile(answered, 99),
                    "without an answer": f"{1 - len(answered) / len(seconds):.1%}",
                }
            )
    return rows


def capacity_rows(found: Found) -> Rows:
    """Return what each side answers in a closed loop."""
    return [{"side": side, "answers a second": round(rate, 1)} for side, rate in found.capacity.items()]


def _in_time(played: Sequence[Played], side: str, deadline: float) -> NDArray[np.float64]:
    """Return how many were answered in time in each round."""
    ordered = sorted((one for one in played if one.side == side), key=lambda one: one.round)
    return np.array([float((one.seconds <= deadline).sum()) for one in ordered])


def _percentile(seconds: NDArray[np.float64], percent: float) -> float:
    return round(float(np.percentile(seconds, percent)) * 1e3, 1) if len(seconds) else float("nan")


def _rate(loaded: Loaded) -> float:
    return loaded.rate


def _figures(runs: Sequence[Run], figure: Callable[[Loaded], float]) -> NDArray[np.float64]:
    return np.array([figure(run.loaded) for run in sorted(runs, key=lambda run: run.round)])


def _median(runs: Sequence[Run], figure: Callable[[Loaded], float]) -> float:
    return float(np.median(_figures(runs, figure)))


def _ratio(here: Sequence[Run], base: Sequence[Run], figure: Callable[[Loaded], float], seed: int) -> str:
    """Return the ratio, with its interval; nothing where there is no base."""
    if not base or here[0].side == base[0].side:
        return ""
    return str(ratio_of_means(_figures(here, figure), _figures(base, figure), seed=seed))
