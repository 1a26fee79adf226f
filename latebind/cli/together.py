"""Checks of `latebind serve` that involve several options, or this machine, made before anything is started."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from latebind.domain.config import EngineConfig, ServeConfig
from latebind.domain.errors import ConfigError

PLACE = re.compile(r"`\$\.(\w+)")


def check_ray(on: str | None, given: Mapping[str, object]) -> None:
    """Raise `ConfigError` for options of Ray where nothing is served on Ray."""
    named = [option for option, value in given.items() if value is not None]
    if on is None and named:
        raise ConfigError(f"{', '.join(named)}: replicas are Ray's; add --on ray, or leave it out")


def check_workers(workers: int | None, granularities: Sequence[int] | None) -> None:
    """Raise `ConfigError` where the number of workers is said twice."""
    if workers is not None and granularities is not None:
        raise ConfigError("--workers and --granularities both say how many workers there are: give one of them")


def check_machine(engine: EngineConfig, event_log: Path | None) -> None:
    """Raise `ConfigError` for cores that this process may not have, and for a log that cannot be written."""
    missing = [core for core in engine.cores if not may_run_on(core)]
    if missing:
        there = sorted(os.sched_getaffinity(0))
        raise ConfigError(f"engine.cores names {missing}: nobody may run there; this process runs on {there}")
    if event_log is not None and not event_log.absolute().parent.is_dir():
        raise ConfigError(f"--event-log {event_log}: the folder {event_log.parent} is not there, make it first")


def may_run_on(core: int) -> bool:
    """Tell whether this thread may go to a core, which may be one that it was not started on; it stays where it is."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {core})
    except (OSError, ValueError, OverflowError):
        return False
    os.sched_setaffinity(0, before)
    return True


def known_keys(error: str) -> str:
    """Return what may stand in the table of the configuration that an error of the decoder is about."""
    if "unknown field" not in error:
        return ""
    place = PLACE.search(error)
    table: Any = type(getattr(ServeConfig(), place[1])) if place else ServeConfig
    return f"; there are {', '.join(field.name for field in msgspec.structs.fields(table))}"
