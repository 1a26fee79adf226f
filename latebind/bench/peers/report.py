"""What comparisons come to, as rows of tables."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from latebind.bench.peers.identity import Run
from latebind.bench.peers.loads import Loaded
from latebind.bench.peers.sides import TRITON
from latebind.bench.statistics import ratio_of_means

Rows = list[dict[str, object]]


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
    return str(ratio_of_means(_figures(here, figure), _figures(base, figure), block=1, seed=seed))
