"""The Azure Functions trace as the residency benchmarks take it: as services that HTTP or a timer calls."""

from pathlib import Path

from latebind.simulation.cluster.azure import read_invocations
from latebind.simulation.traces import Service

TRIGGERS = ("http", "timer")  # nothing else is asked for, and a whole day is long


def read_trace(file: Path) -> list[Service]:
    """Return the functions of a trace that are called by HTTP or a timer, with the counts of each minute.

    Raises `ConfigError` where the file is no trace, or has none.
    """
    found = read_invocations(file, TRIGGERS)
    return [Service(tuple(row), trigger) for row, trigger in zip(found.counts.tolist(), found.triggers, strict=True)]
