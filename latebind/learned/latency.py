"""What a lookup costs where it will run: between the stages of its network or beside it, not in a loop of its own."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.learned.lookup import LookupFunction
from latebind.program.measure import profiled_batches, time_call, with_batch
from latebind.program.program import Program

RUNS, WARM_RUNS = 23, 3  # of the whole network, for each batch size


@dataclass(frozen=True, slots=True)
class Beside:
    """What a lookup costs that runs while its network goes on.

    `known` are the seconds from the end of its stage to its answer, `slower` what the network takes more, at batch 1.
    """

    known: Curve
    slower: float


def latency_in_place(program: Program, row: tuple[Tensor, ...], stage: int, function: LookupFunction) -> Curve:
    """Measure a lookup where it will run, between the stages of the whole network.

    Called again and again it would find its weights and code in the caches near the core and look half as long.
    """
    batches = profiled_batches(program.spec.max_batch)
    seconds = []
    for batch in batches:
        inputs = with_batch(row, batch)
        found = [_seconds_in_place(program, inputs, stage, function) for _ in range(RUNS)]
        seconds.append(median(found[WARM_RUNS:]))
    return Curve(batches, tuple(seconds))


def _seconds_in_place(program: Program, inputs: tuple[Tensor, ...], stage: int, function: LookupFunction) -> float:
    """Run the network once with the lookup behind `stage` and return the seconds of the lookup."""
    passed, seconds = inputs, 0.0
    for number, run in enumerate(program.stages):
        passed = run(*passed)
        if number == stage:
            seconds = time_call(partial(function, passed[0]))
    return seconds


def latency_beside(program: Program, row: tuple[Tensor, ...], stage: int, function: LookupFunction) -> Beside:
    """Measure a lookup that another thread asks while this one goes on with the network."""
    batches = profiled_batches(program.spec.max_batch)
    known, slower = [], 0.0
    with ThreadPoolExecutor(1) as thread:
        for batch in batches:
            inputs = with_batch(row, batch)
            found = [_seconds_beside(program, inputs, stage, function, thread) for _ in range(RUNS)][WARM_RUNS:]
            known.append(median(answer for answer, _ in found))
            if batch == 1:
                alone = [time_call(partial(program.run, *inputs)) for _ in range(RUNS)]
                slower = max(0.0, median(whole for _, whole in found) - median(alone[WARM_RUNS:]))
    return Beside(Curve(batches, tuple(known)), slower)


def _seconds_beside(
    program: Program, inputs: tuple[Tensor, ...], stage: int, function: LookupFunction, thread: ThreadPoolExecutor
) -> tuple[float, float]:
    """Run the network once with the lookup beside it; return the seconds to its answer and those of the network."""

    def ask(activation: Tensor) -> float:
        with torch.inference_mode():
            function(activation)
        return perf_counter()

    start = perf_counter()
    passed = inputs
    for number, run in enumerate(program.stages):
        passed = run(*passed)
        if number == stage:
            asked = perf_counter()
            answered = thread.submit(ask, passed[0].clone())
    ended = perf_counter()
    return answered.result() - asked, ended - start
