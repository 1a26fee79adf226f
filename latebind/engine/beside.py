"""How much workers slow each other down when they run the same model at the same time, because they wait for memory.

Each of them reads all weights. Where that is most of the work, they take longer than one of them alone. Decision 98.
"""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch
from torch import Tensor

from latebind.program.measure import made_up_inputs, run_chain
from latebind.program.program import Program
from latebind.repository.directory import WEIGHTS, ModelDirectory

LEAST_READ = 2e9  # bytes of weights that a request reads a second; with less nobody waits for memory
SIZES = 1, 4  # rows of the batches that are measured
ROUNDS = 5  # for each size, of a worker alone and of all in turn
SECONDS = 0.02  # of each round, at least


def beside(program: Program, directory: ModelDirectory, *, workers: int) -> float:
    """Return how many times as long a batch takes while all of `workers` run one as while only one runs.

    It is the mean over several sizes of batches, each by the quickest of its rounds, and at least 1.
    """
    alone = sum([curve.at(1) for curve in program.costs.stages])
    if directory.files[WEIGHTS].bytes < LEAST_READ * alone:
        return 1.0
    crew = [program, *(program.twin() for _ in range(1, workers))]
    sizes = [size for size in SIZES if size <= program.spec.max_batch]
    return max(1.0, sum([_ratio(crew, size) for size in sizes]) / len(sizes))


def _ratio(crew: Sequence[Program], batch: int) -> float:
    inputs = made_up_inputs(crew[0].spec.inputs, batch)
    runs = 1 + int(SECONDS / _seconds(crew, inputs, 2))  # the first runs also allocate
    rounds = [(_seconds(crew, inputs, runs), _seconds(crew[:1], inputs, runs)) for _ in range(ROUNDS)]
    return min([together for together, _ in rounds]) / min([alone for _, alone in rounds])


def _seconds(programs: Sequence[Program], inputs: tuple[Tensor, ...], runs: int) -> float:
    """Return the seconds of a run of all programs at the same time, each on a thread of its own."""
    start = Barrier(len(programs) + 1)

    def work(program: Program) -> None:
        with torch.inference_mode():
            start.wait()
            for _ in range(runs):
                run_chain(program.stages, inputs)

    with ThreadPoolExecutor(len(programs)) as threads:
        working = [threads.submit(work, program) for program in programs]
        start.wait()
        begun = time.perf_counter()
        for one in working:
            one.result()
        seconds: float = time.perf_counter() - begun
    return seconds / runs
