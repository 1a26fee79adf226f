"""Measures the memory of workers: one copy of the weights for all, or one for each (Ebird, section VIII-E). Linux.

Each side is a process of its own that loads a model for its workers, once as the engine does, or once for each worker
as Ebird does. Then every worker runs its largest batch. The engine itself is started and measured too.
"""

import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import numpy as np
import torch

from latebind.adaptation.controller import FULL_DEPTH, number_of
from latebind.bench.server import Resident, resident
from latebind.cli.console import Rows as TableRows
from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig, PolicyConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.client import EngineClient
from latebind.engine.cores import at_once
from latebind.engine.crew import LoadedModel, load_crew
from latebind.engine.order import EngineOrder
from latebind.engine.slots import Rows, SlotMemory, create_file, file_bytes
from latebind.engine.worker import Worker
from latebind.program.measure import made_up_inputs
from latebind.program.stored import read_model
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models

GRANULARITIES = (1, 1, 2, 4, 8, 16)  # as Ebird's are: each twice the one before, and one more for single requests
PAPER = 0.152  # more global memory than TensorFlow Serving, weights of every worker included (Ebird, section VIII-E)
STEPS = 3  # of decoding, for a sequence model
ROUNDS = 5  # of calls to the engine
PATIENCE = 60.0  # seconds that any call may take


@dataclass(frozen=True, slots=True)
class Side:
    """What one process is to load; `copies` makes it load the weights once for each worker."""

    directory: str
    engine: EngineConfig
    copies: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """What a side takes when its workers are loaded, and when each has run its largest batch."""

    side: Side
    process: str
    idle: Resident
    used: Resident


def run(
    repository: Path, model: str, *, granularities: Sequence[int] = (), backend: str | None = None
) -> tuple[Taken, ...]:
    """Measure one worker, a worker for each granularity, and those with a copy each; the engine with the first two.

    Without granularities they are `GRANULARITIES` up to the largest batch of the model. Raises `ConfigError`.
    """
    (path,) = find_models(repository, [model])
    largest = read_model(ModelDirectory.open(path)).max_batch
    wanted = tuple(granularities) or tuple(batch for batch in GRANULARITIES if batch <= largest)
    if max(wanted) > largest:
        raise ConfigError(f"{model} was built for batches up to {largest}: give no granularity above")
    one, several = EngineConfig(backend=backend), EngineConfig(backend=backend, granularities=wanted)
    shared = [Side(str(path), config) for config in (one, several)]
    engines = [asyncio.run(_ask_engine(side)) for side in shared]
    return (*(measure_apart(side) for side in (*shared, Side(str(path), several, copies=True))), *engines)


def rows(found: Sequence[Taken]) -> TableRows:
    """Return a row for each side, in MB; the last figure is beside one worker in the same kind of process."""
    one_worker = {taken.process: taken.used.whole for taken in reversed(found)}
    return [
        {
            "process": taken.process,
            "workers": ", ".join(map(str, taken.side.engine.granularities)) or "1, any batch",
            "weights": "a copy each" if taken.side.copies else "one copy",
            "loaded": str(taken.idle),
            "all have run": str(taken.used),
            "over one worker": f"{taken.used.whole / one_worker[taken.process] - 1.0:+.1%}",
        }
        for taken in found
    ]


def measure_apart(side: Side) -> Taken:
    """Return the memory of a side, measured in a process of its own."""
    command = [sys.executable, "-m", "latebind.bench.memory", msgspec.json.encode(side).decode()]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    idle, used = (msgspec.json.decode(line, type=Resident) for line in lines)
    return Taken(side, "workers", idle, used)


async def _ask_engine(side: Side) -> Taken:
    """Start the engine and send calls as large as the workers' batches, all at the same time."""
    client = await EngineClient.start(EngineOrder((side.directory,), side.engine, PolicyConfig(shed=False)))
    try:
        idle = resident(client.process_id)
        (spec,) = client.models.values()
        for _ in range(ROUNDS):
            deadline = time.monotonic() + PATIENCE
            calls = [client.infer(spec.name, _rows(spec, size), deadline=deadline) for size in _sizes(side, spec)]
            await asyncio.gather(*calls)
        return Taken(side, "engine", idle, resident(client.process_id))
    finally:
        await client.close()


def _sizes(side: Side, spec: ModelSpec) -> tuple[int, ...]:
    return side.engine.granularities or (spec.max_batch,)


def _rows(spec: ModelSpec, size: int) -> dict[str, Rows]:
    """Return made-up rows of each input; of tokens ones, which every model has."""
    rows = {one.name: rows.numpy() for one, rows in zip(spec.inputs, made_up_inputs(spec.inputs, size), strict=True)}
    return {name: np.ones_like(array) if spec.kinds else array for name, array in rows.items()}


def measure(side: Side) -> Iterator[Resident]:
    """Yield what this process takes once the workers are loaded, and once each has run its largest batch."""
    torch.set_num_threads(side.engine.threads)
    crew = _crew(side)
    spec, sizes = crew[0].spec, _sizes(side, crew[0].spec)
    file = create_file()
    slots = {spec.name: max(sizes)}
    os.ftruncate(file, file_bytes([spec], slots))
    memory = SlotMemory(file, [spec], slots)
    for rows, made in zip(memory.models[0].inputs, _rows(spec, max(sizes)).values(), strict=True):
        rows[:] = made
    workers = [Worker({spec.name: model}, memory) for model in crew]
    gc.collect()
    yield resident()
    with ThreadPoolExecutor(at_once(side.engine)) as threads:
        list(threads.map(partial(_run_stages, spec), count(), workers, sizes))
    yield resident()


def _crew(side: Side) -> list[LoadedModel]:
    """Return the loaded model of each worker."""
    paths = [Path(side.directory)]
    if not side.copies:
        return [model for (model,) in load_crew(paths, side.engine)]
    alone = [msgspec.structs.replace(side.engine, granularities=(size,)) for size in side.engine.granularities]
    return [load_crew(paths, config)[0][0] for config in alone]


@torch.inference_mode()
def _run_stages(spec: ModelSpec, number: int, worker: Worker, size: int) -> None:
    """Run every stage on a whole batch without early exits; of a sequence model some steps."""
    worker.adopt(spec.name, number_of(FULL_DEPTH), {})
    slots = tuple(range(size))
    requests = tuple(number * spec.max_batch + slot for slot in slots)
    for stage in (0, *([1] * STEPS)) if spec.kinds else range(spec.stages):
        worker.run(Run(number, spec.name, stage, requests, slots))


def main(words: Sequence[str]) -> None:
    """Measure one side in this process, the one word, and print a line of JSON for each figure."""
    (side,) = words
    for found in measure(msgspec.json.decode(side, type=Side)):
        print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
