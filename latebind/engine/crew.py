"""Loads the workers' models: each model once, then a twin for every worker, sharing one copy of large weights.

Ebird's workers each have a copy (section VIII-E: 15.2 % more memory); it names sharing as the remedy.
"""

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import msgspec

from latebind.domain.config import TIERS, EngineConfig, ResidencyConfig
from latebind.domain.errors import ConfigError
from latebind.engine.cores import usable_cores
from latebind.engine.on_demand import ROW_COPIES, measure, open_model
from latebind.engine.served import with_queries
from latebind.engine.worker import MOST_WAITING, LoadedModel, load_model
from latebind.program.device import HOST
from latebind.program.pieces import Piece, mmap_large_blocks, release_memory
from latebind.sequence.program import SequenceProgram, warm_up

logger = logging.getLogger(__name__)


def at_once(config: EngineConfig) -> int:
    """Return how many workers run at the same time: on a device all, on the CPU those with cores of their own."""
    if config.device != HOST.type:
        return config.crew
    return max(1, min(config.crew, usable_cores(config) // config.threads))


def load_crew(paths: Iterable[Path], config: EngineConfig) -> list[list[LoadedModel]]:
    """Return the models of each worker. Raises `RepositoryError` and `ConfigError`.

    Memory that compiling left behind is returned to the system: 5 to 45 MB for models of 3 and 34.
    """
    first = [load_model(path, config, streams=at_once(config)) for path in paths]
    crew = [first, *([model.twin() for model in first] for _ in range(1, config.crew))]
    with ThreadPoolExecutor(at_once(config)) as threads:
        list(threads.map(_warm_up, crew, config.granularities or repeat(None)))
    release_memory()
    return crew


def open_crew(
    paths: Iterable[Path], config: EngineConfig, residency: ResidencyConfig, queries: Sequence[Path] = ()
) -> tuple[list[list[LoadedModel]], dict[str, tuple[Piece, ...]], ResidencyConfig]:
    """Return the models of each worker with nothing in memory, their pieces, and the residency that is left for them.

    Each piece is loaded once to measure it, one after another. The budget is reduced by all slots, those of `queries`
    too, although they take memory only once they have been used, because that memory could not be reclaimed. It is also
    reduced by what the workers' largest batches take while they run, and by what requests keep between stages. Raises
    `RepositoryError` for a model that does not run, and `ConfigError` if a piece does not fit, or if all that leaves
    nothing of the budget.
    """
    mmap_large_blocks()
    cached = residency.tier == TIERS[0]
    opened = [open_model(path, config, streams=at_once(config), cached=cached) for path in paths]
    twins = [
        [one.model.twin() for one in opened] for _ in range(1, config.crew)
    ]  # made before measuring: they take memory too
    served = with_queries([one.model for one in opened], queries, config.slots)
    if served.bytes >= residency.budget:
        raise ConfigError(
            f"residency.budget is {residency.budget} bytes, and slots for {len(served.specs)} models and queries take "
            f"{served.bytes} of them: give more --memory or fewer --slots"
        )
    budget = residency.budget - served.bytes
    for one in {one.model.program.backend: one for one in opened}.values():
        measure(one, budget)  # a first time per backend: what the backend itself takes is not counted for a model
    first = [measure(one, budget) for one in opened]
    others = [
        [replace(twin, costs=model.costs, footprint=model.footprint) for twin, model in zip(crew, first, strict=True)]
        for crew in twins
    ]
    working, resting = at_once(config) * max(model.working for model in first), _resting(first, config)
    if working + resting.most >= budget:
        raise ConfigError(
            f"residency.budget leaves {budget} bytes beside slots; {at_once(config)} batches take {working} while they "
            f"run, and requests between stages {resting.most}: give more --memory, or build the models with a smaller "
            "--max-batch"
        )
    pieces = {one.model.spec.name: one.pieces for one in opened}
    release_memory()  # memory that measuring left behind
    left = msgspec.structs.replace(residency, budget=budget - working - resting.most, resting=resting.allowed)
    return [first, *others], pieces, left


class _Resting(NamedTuple):
    """Bytes between stages: no request starts while those started keep more than `allowed`; `most` are ever taken."""

    allowed: int
    most: int


def _resting(models: Sequence[LoadedModel], config: EngineConfig) -> _Resting:
    """Return what requests may keep between stages: a batch for each worker, besides those that run.

    Each worker may launch one batch more before the bound is looked at again. Lookups aside have copies of their own,
    and each worker has rows for a whole batch of each decoder from the start.
    """
    batches = [model.spec.max_batch * model.footprint.row for model in models]
    largest = max(batches, default=0)
    lookups = max([size for size, model in zip(batches, models, strict=True) if model.costs.aside], default=0)
    decoders = sum([size for size, model in zip(batches, models, strict=True) if model.spec.kinds]) // ROW_COPIES
    most = (2 * config.crew - at_once(config)) * largest
    return _Resting(config.crew * largest, most + config.crew * ((1 + MOST_WAITING) * lookups + decoders))


def told_of_memory(models: Iterable[LoadedModel], memory: int, budget: int) -> dict[str, str]:
    """Log the `budget` that slots and batches leave of `memory`, in bytes, and what does not fit into it as a whole.

    Return what each such model takes.
    """
    logger.info(
        "--memory: models may take %.1f of %.1f MB, slots and batches take the rest", budget / 1e6, memory / 1e6
    )
    found = {}
    for model in models:
        takes = sum(model.footprint.sizes[: model.footprint.stages])
        if takes > budget:
            name = model.spec.name
            found[name] = f"it takes {takes / 1e6:.1f} MB and models may take {budget / 1e6:.1f} MB of --memory"
            logger.warning(
                "%s does not fit into memory as a whole: %s. It is loaded piece by piece, again for each batch, and"
                " requests whose deadline does not allow that are refused: give more --memory or fewer --slots",
                *(name, found[name]),
            )
    return found


def _warm_up(models: Iterable[LoadedModel], largest: int | None) -> None:
    """Run sequence models once with every batch size that this worker may get."""
    for model in models:
        if isinstance(model.program, SequenceProgram):
            warm_up(model.program, largest or model.spec.max_batch)
