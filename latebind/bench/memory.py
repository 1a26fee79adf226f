"""Measures the memory of workers: one copy of the weights for all, or one for each (Ebird, section VIII-E). Linux.

Each side is a process of its own that loads a model for its workers, once as the engine does, or once for each worker
as Ebird does. Then every worker runs its largest batch.
"""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import torch

from latebind.adaptation.controller import FULL_DEPTH, number_of
from latebind.bench.server import Resident, resident
from latebind.cli.console import Rows as TableRows
from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.errors import ConfigError
from latebind.domain.model import ModelSpec
from latebind.engine.cores import at_once
from latebind.engine.loaded import LoadedModel, load_for_workers
from latebind.engine.slots import SlotMemory, create_file, file_bytes
from latebind.engine.worker import Worker
from latebind.program.measure import made_up_inputs
from latebind.program.metadata import read_model
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models

GRANULARITIES = (1, 1, 2, 4, 8, 16)  # like Ebird's: each twice the one before, and one more for single requests
PAPER = 0.152  # more global memory than TensorFlow Serving, weights of every worker included (Ebird, section VIII-E)
STEPS = 3  # of decoding, for a sequence model


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
    idle: Resident
    used: Resident


def run(
    repository: Path, model: str, *, granularities: Sequence[int] = (), backend: str | None = None
) -> tuple[Taken, ...]:
    """Measure one worker, a worker for each granularity, and those with a copy each, each side in a process of its own.

    Without granularities they are `GRANULARITIES` up to the largest batch of the model. Raises `ConfigError`.
    """
    (path,) = find_models(repository, [model])
    largest = read_model(ModelDirectory.open(path)).max_batch
    wanted = tuple(granularities) or tuple(batch for batch in GRANULARITIES if batch <= largest)
    if max(wanted) > largest:
        raise ConfigError(f"{model} was built for batches up to {largest}: give no granularity above")
    one, several = EngineConfig(backend=backend), EngineConfig(backend=backend, granularities=wanted)
    found = []
    for side in (Side(str(path), one), Side(str(path), several), Side(str(path), several, copies=True)):
        command = [sys.executable, "-m", "latebind.bench.memory", msgspec.json.encode(side).decode()]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()
        found.append(Taken(side, *(msgspec.json.decode(line, type=Resident) for line in lines)))
    return tuple(found)


def rows(found: Sequence[Taken]) -> TableRows:
    """Return a row for each side, in MB; the last figure is beside the first side, one worker."""
    return [
        {
            "workers": ", ".join(map(str, taken.side.engine.granularities)) or "1, any batch",
            "weights": "a copy each" if taken.side.copies else "one copy",
            "loaded": str(taken.idle),
            "all have run": str(taken.used),
            "over one worker": f"{taken.used.whole / found[0].used.whole - 1.0:+.1%}",
        }
        for taken in found
    ]


def measure(side: Side) -> Iterator[Resident]:
    """Yield what this process takes once the workers are loaded, and once each has run its largest batch."""
    torch.set_num_threads(side.engine.threads)
    paths, models = [Path(side.directory)], list[LoadedModel]()
    if side.copies:
        for size in side.engine.granularities:
            models += load_for_workers(paths, msgspec.structs.replace(side.engine, granularities=(size,)))[0]
    else:
        models = [model for (model,) in load_for_workers(paths, side.engine)]
    spec = models[0].spec
    sizes = side.engine.granularities or (spec.max_batch,)
    file, slots = create_file(), {spec.name: max(sizes)}
    os.ftruncate(file, file_bytes([spec], slots))
    memory = SlotMemory(file, [spec], slots)
    made = made_up_inputs(spec.inputs, max(sizes))
    inputs, sized = memory.models[0].inputs, memory.models[0].sized
    if sized is not None:
        numbers, most = range(max(sizes)), tuple([dim.most for dim in spec.dims])
        begin = memory.extents().take(sized.bytes_of(len(numbers), most))
        assert begin is not None, "there is room for the largest rows in all slots"
        sized.place(begin, numbers, most)
        inputs, _ = sized.views(numbers)
    for rows, some in zip(inputs, made, strict=True):
        rows[:] = 1 if spec.kinds else some  # token 1, which every model has
    workers = [Worker({spec.name: model}, memory) for model in models]
    gc.collect()
    yield resident()
    with ThreadPoolExecutor(at_once(side.engine)) as threads:
        list(threads.map(partial(_run_stages, spec), count(), workers, sizes))
    yield resident()


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
    for found in measure(msgspec.json.decode(words[0], type=Side)):
        print(msgspec.json.encode(found).decode(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
