"""The cores that an engine may use, and how many workers share them where nobody says."""

import os
from collections.abc import Mapping
from math import inf
from pathlib import Path

from msgspec.structs import replace

from latebind.domain.config import EngineConfig, ServeConfig

MOST_WORKERS = 8  # that are chosen: their scheduler is one, and decides for all of them in turn
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
UNIFIED = "0::"  # begins the line of control groups version 2


def usable_cores(config: EngineConfig) -> int:
    """Return the number of cores that the engine may use."""
    return len(config.cores) or max(1, int(min(len(os.sched_getaffinity(0)), cpu_quota())))


def at_once(config: EngineConfig) -> int:
    """Return how many workers run at the same time: on a device all, on the CPU those with cores of their own."""
    if config.device != "cpu":
        return config.crew
    return max(1, min(config.crew, usable_cores(config) // config.threads))


def cpu_quota(groups: Path = GROUPS, own: Path = OWN_GROUP) -> float:
    """Return how many cores' time the control groups (version 2) of this process allow; inf where they set no limit.

    A container with a limit on its CPU time sees all cores of its machine all the same.
    """
    try:
        names = [line.removeprefix(UNIFIED) for line in own.read_text().splitlines() if line.startswith(UNIFIED)]
    except OSError:
        return inf
    inner = [groups / name.strip("/") for name in names]
    return min([_quota(folder) for each in inner for folder in (each, *each.parents)], default=inf)


def fitted(settings: ServeConfig, said: Mapping[str, object], *, on: str | None = None) -> ServeConfig:
    """Return the settings with workers for the cores that there are, unless `said`, of the engine, has their number.

    The cores are those of this machine that are left beside the frontend, which needs about one, or those that each
    replica asks for, if these are served `on` something else.
    """
    if not said.keys().isdisjoint(("workers", "granularities")):
        return settings
    cores = beside_frontend(settings.engine) if on is None else max(1, int(settings.cluster.cpus) - 1)
    threads = settings.engine.threads if "threads" in said else None
    return replace(settings, engine=with_workers(settings.engine, cores, threads=threads))


def beside_frontend(config: EngineConfig) -> int:
    """Return how many of the cores that the engine may use are left beside the frontend, at least one."""
    return max(1, min(usable_cores(config), usable_cores(EngineConfig()) - 1))


def with_workers(config: EngineConfig, cores: int, *, threads: int | None = None) -> EngineConfig:
    """Return the configuration with as many workers as `cores` allow, at most `MOST_WORKERS`.

    Each has `threads` threads; if that is None, one, or as many as give all workers together the cores. On a device
    there is one worker.
    """
    if config.device != "cpu":
        return config
    each = threads or -(-cores // MOST_WORKERS)
    return replace(config, workers=max(1, min(MOST_WORKERS, cores // each)), threads=each)


def _quota(folder: Path) -> float:
    try:
        most, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return inf
    return inf if most == "max" else int(most) / int(period)
