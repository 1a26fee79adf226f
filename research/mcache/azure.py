"""The Azure Functions trace as the residency benchmarks use it: services that HTTP or a timer calls."""

from pathlib import Path
from random import Random

from latebind.simulation.cluster.traffic import read_invocations
from research.mcache.traces import SERVICES, Service, drawn

TRIGGERS = ("http", "timer")  # nothing else is asked for, and a whole day is long


def read_trace(file: Path) -> list[Service]:
    """Return the functions of a trace that are called by HTTP or a timer, with the counts of each minute.

    Raises `ConfigError` where the file is no trace, or has none.
    """
    found = read_invocations(file, TRIGGERS)
    return [Service(tuple(row), trigger) for row, trigger in zip(found.counts.tolist(), found.triggers, strict=True)]


def services_of(file: Path | None, count: int = SERVICES) -> tuple[Service, ...]:
    """Return those of a trace, or so many that are drawn like them. Raises `ConfigError` as `read_trace` does."""
    return tuple(read_trace(file) if file else drawn(Random(0), services=count))
