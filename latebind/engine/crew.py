"""The workers' models: loaded once, then a twin for each worker, so that all share one copy of the weights.

Ebird's workers each have a copy (section VIII-E: 15.2 % more memory), and it names sharing them as the remedy.
"""

import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from pathlib import Path

from latebind.domain.config import EngineConfig
from latebind.engine.worker import LoadedModel, load_model
from latebind.program.device import HOST
from latebind.sequence.measure import warm_up
from latebind.sequence.program import SequenceProgram


def at_once(config: EngineConfig) -> int:
    """Return how many workers can run at a time: all on a device, on the CPU as many as have cores of their own."""
    if config.device != HOST.type:
        return config.crew
    return max(1, min(config.crew, usable_cores(config) // config.threads))


def usable_cores(config: EngineConfig) -> int:
    """Return the number of cores that the engine may use."""
    return len(config.cores or os.sched_getaffinity(0))


def load_crew(paths: Iterable[Path], config: EngineConfig) -> list[list[LoadedModel]]:
    """Return the models of each worker. Raises `RepositoryError` and `ConfigError`."""
    first = [load_model(path, config, streams=at_once(config)) for path in paths]
    crew = [first, *([model.twin() for model in first] for _ in range(1, config.crew))]
    with ThreadPoolExecutor(at_once(config)) as threads:
        list(threads.map(_warm_up, crew, config.granularities or repeat(None)))
    return crew


def _warm_up(models: Iterable[LoadedModel], largest: int | None) -> None:
    """Run sequence models once on every size of batch that this worker may have."""
    for model in models:
        if isinstance(model.program, SequenceProgram):
            warm_up(model.program, largest or model.spec.max_batch)
