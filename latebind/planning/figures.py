"""The figures of one simulated run of a cluster: answers in time, latencies, and the load of the machines."""

from dataclasses import dataclass
from math import nan

import numpy as np
from numpy.typing import NDArray

from latebind.domain.actions import Outcome
from latebind.simulation.cluster.fleet import UNKNOWN, Fleet, Played


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of the requests that count: shares of 1, latencies in seconds, and goodput in requests per second.

    `in_time` and `answered` are shares of these requests. `mean`, `p50` and `p99` are latencies of answered ones, NaN
    where there are none. `busy` is the share of the time in which workers ran and `loads` the number of loads per
    second, both over the whole run. A run that was stopped early, because too many were late, is not `complete`: its
    other figures then say nothing but that.
    """

    requests: int
    in_time: float
    answered: float
    goodput: float
    mean: float
    p50: float
    p99: float
    busy: float
    loads: float
    complete: bool = True


def in_time(fleet: Fleet, played: Played) -> NDArray[np.bool_]:
    """Return for each request, `(N,)` bool, whether it was answered within the deadline of its model."""
    allowed = np.array([model.allowed for model in fleet.models])[played.requests.models]
    right: NDArray[np.bool_] = (played.outcome == Outcome.ANSWERED) & (played.ended - played.requests.times <= allowed)
    return right


def figures_of(fleet: Fleet, played: Played, *, warm: float = 0.0) -> Figures:
    """Sum up a run. Requests that arrived before `warm` (seconds) do not count, because memory fills meanwhile."""
    times = played.requests.times
    if not len(times):
        return Figures(0, nan, nan, 0.0, nan, nan, nan, 0.0, 0.0)
    counted = times >= warm
    right, span = in_time(fleet, played)[counted], float(times[-1])
    answered = (played.outcome == Outcome.ANSWERED) & counted
    latencies = (played.ended - times)[answered]
    p50, p99 = np.quantile(latencies, [0.5, 0.99], method="inverted_cdf") if len(latencies) else (nan, nan)
    requests = int(counted.sum())
    complete = not (played.outcome == UNKNOWN).any()
    ran = max(span, float(np.nanmax(played.ended)))
    return Figures(
        requests,
        float(right.mean()) if requests else nan,
        len(latencies) / requests if requests else nan,
        float(right.sum()) * played.requests.weight / max(span - warm, 1e-9),
        float(latencies.mean()) if len(latencies) else nan,
        float(p50),
        float(p99),
        float(played.busy.sum()) / (ran * sum(kind.workers for kind in fleet.machines)),
        played.loads / ran,
        bool(complete),
    )
