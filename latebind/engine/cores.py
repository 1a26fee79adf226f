"""The cores that an engine may use, and how many workers share them if the configuration does not say."""

import os
from collections.abc import Collection
from math import inf
from pathlib import Path

from msgspec.structs import replace

from latebind.domain.config import EngineConfig, ServeConfig
from latebind.domain.model import About

MOST_WORKERS = 8  # chosen by default: one scheduler decides for all of them in turn
MOST_THREADS = 8  # of a worker, if models read texts, before there is a second one
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUP = Path("/proc/self/cgroup")
UNIFIED = "0::"  # begins the line of control groups version 2


def usable_cores(config: EngineConfig) -> int:
    """Return the number of cores that the engine may use."""
    return len(config.cores) or max(1, int(min(len(os.sched_getaffinity(0)), cpu_quota())))


def at_once(config: EngineConfig) -> int:
    """Return how many workers run at the same time: on a device all, on the CPU those with their own cores."""
    if config.device != "cpu":
        return config.worker_count
    return max(1, min(config.worker_count, usable_cores(config) // config.threads))


def cpu_quota(groups: Path = GROUPS, own: Path = OWN_GROUP) -> float:
    """Return how many cores' time the control groups (version 2) of this process allow; inf without a limit.

    A container with a limit on its CPU time still sees all cores of its machine.
    """
    try:
        names = [line.removeprefix(UNIFIED) for line in own.read_text().splitlines() if line.startswith(UNIFIED)]
    except OSError:
        return inf
    inner = [groups / name.strip("/") for name in names]
    return min([_quota(folder) for each in inner for folder in (each, *each.parents)], default=inf)


def fitted(settings: ServeConfig, given: Collection[str], *, texts: bool = False, on: str | None = None) -> ServeConfig:
    """Return the settings with workers for the available cores, unless the engine's `given` keys set their number.

    The cores are those of this machine that are left beside the frontend, which needs about one, or those that each
    replica asks for, if these are served `on` something else. `texts` is whether all models read texts.
    """
    if not {"workers", "granularities"}.isdisjoint(given):
        return settings
    usable = usable_cores(settings.engine) if on is None else max(1, int(settings.cluster.cpus))
    cores = beside_frontend(settings.engine) if on is None else max(1, usable - 1)
    threads = settings.engine.threads if "threads" in given else _sharing(usable, cores) if texts else None
    return replace(settings, engine=with_workers(settings.engine, cores, threads=threads))


def beside_frontend(config: EngineConfig) -> int:
    """Return how many of the cores that the engine may use are left beside the frontend, at least one."""
    return max(1, min(usable_cores(config), usable_cores(EngineConfig()) - 1))


def threads_here(about: About) -> int:
    """Return how many threads each worker has by default on this machine: what a build measures with."""
    if not about.reads_texts:
        return 1
    return _sharing(usable_cores(EngineConfig()), beside_frontend(EngineConfig()))


def with_workers(config: EngineConfig, cores: int, *, threads: int | None = None) -> EngineConfig:
    """Return the configuration with as many workers as `cores` allow, at most `MOST_WORKERS`.

    Each has `threads` threads; if that is None, one, or as many as let all workers together use the cores. On a device
    there is one worker.
    """
    if config.device != "cpu":
        return config
    each = threads or -(-cores // MOST_WORKERS)
    return replace(config, workers=max(1, min(MOST_WORKERS, cores // each)), threads=each)


def _sharing(usable: int, cores: int) -> int:
    """Return how many threads a worker has if all models read texts: `cores` are those of `usable` beside the frontend.

    As few workers as possible share them. A short text, or a step of a writer, takes as long as reading the weights,
    which a worker does once for all that it runs. Of two cores it uses both, and the frontend a part of one: with one
    thread all-MiniLM-L6-v2 took 1.3 times as long for one client, and two workers of T5-small 1.7 times.
    """
    workers = min(MOST_WORKERS, -(-cores // MOST_THREADS))
    return min(usable, max(2, cores // workers))


def _quota(folder: Path) -> float:
    try:
        most, period = (folder / "cpu.max").read_text().split()
    except (OSError, ValueError):
        return inf
    return inf if most == "max" else int(most) / int(period)
