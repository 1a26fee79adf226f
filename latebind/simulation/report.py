"""The figures of a run, live or simulated: one row of latency, throughput and where requests left."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, nan

from latebind.domain.actions import Outcome
from latebind.simulation.driver import Record


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds and shares over one run; latencies are of answered requests only, NaN where there are none."""

    requests: int
    answered: int
    in_time: int
    mean: float
    p50: float
    p99: float
    throughput: float
    left_at: dict[int, float]


def summarise(records: Sequence[Record], *, allowed: float) -> Summary:
    """Sum up records; `allowed` (seconds) decides what was in time."""
    answered = [record for record in records if record.outcome is Outcome.ANSWERED]
    latencies = sorted(record.latency for record in answered)
    span = max(r.ended for r in records) - min(r.arrived for r in records) if records else 0.0
    stages = Counter(record.stage for record in answered)
    return Summary(
        requests=len(records),
        answered=len(answered),
        in_time=sum(latency <= allowed for latency in latencies),
        mean=sum(latencies) / len(latencies) if latencies else nan,
        p50=percentile(latencies, 50),
        p99=percentile(latencies, 99),
        throughput=len(answered) / span if span else nan,
        left_at={stage: stages[stage] / len(answered) for stage in sorted(stages)},
    )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of values in ascending order; NaN of none."""
    if not ascending:
        return nan
    return ascending[max(0, ceil(percent / 100 * len(ascending)) - 1)]
