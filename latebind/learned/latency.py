"""Measures the cost of a lookup where it will run: between the stages of its network, or on another core."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import fmean, median
from time import perf_counter

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.learned.lookup import LookupFunction
from latebind.learned.reading import Reading, readings
from latebind.program.measure import time_call, with_batch
from latebind.program.metadata import profiled_batches
from latebind.program.program import Program

RUNS, WARM_RUNS = 23, 3  # of the whole network, for each batch size


@dataclass(frozen=True, slots=True)
class AsideLatency:
    """The cost of a lookup that runs aside, on another core while its network goes on.

    `known` is the latency from the end of its stage to its answer. `slower` is how many seconds longer the network
    takes meanwhile, at batch 1.
    """

    known: Curve
    slower: float


def latency_in_place(
    program: Program, rows: Sequence[tuple[Tensor, ...]], stage: int, function: LookupFunction
) -> Curve:
    """Measure a lookup in line, between the stages of the whole network; the mean over `rows` of several lengths.

    In a loop of its own it would find its weights and code in the core's caches, and seem to take half as long.
    """
    read = readings(program)[stage]

    def once(inputs: tuple[Tensor, ...]) -> float:
        passed, seconds = inputs, 0.0
        for number, run in enumerate(program.stages):
            passed = run(*passed)
            if number == stage:
                seconds = time_call(partial(_ask, function, read, passed[0]))
        return seconds

    batches = profiled_batches(program.spec.max_batch)
    seconds = []
    for batch in batches:
        each = [with_batch(row, batch) for row in rows]
        seconds.append(fmean(median([once(inputs) for _ in range(RUNS)][WARM_RUNS:]) for inputs in each))
    return Curve(batches, tuple(seconds))


def latency_aside(
    program: Program, rows: Sequence[tuple[Tensor, ...]], stage: int, function: LookupFunction
) -> AsideLatency:
    """Measure a lookup that runs in another thread while this one goes on with the network; the mean over `rows`."""
    batches = profiled_batches(program.spec.max_batch)
    call = partial(_ask, function, readings(program)[stage])
    known, slower = [], list[float]()
    with ThreadPoolExecutor(1) as thread:
        for batch in batches:
            answered = []
            for inputs in [with_batch(row, batch) for row in rows]:
                found = [_seconds_beside(program, inputs, stage, call, thread) for _ in range(RUNS)][WARM_RUNS:]
                answered.append(median(answer for answer, _ in found))
                if batch == 1:
                    alone = [time_call(partial(program.run, *inputs)) for _ in range(RUNS)]
                    slower.append(median(whole for _, whole in found) - median(alone[WARM_RUNS:]))
            known.append(fmean(answered))
    return AsideLatency(Curve(batches, tuple(known)), max(0.0, fmean(slower)))


def _ask(function: LookupFunction, read: Reading, activation: Tensor) -> object:
    return function(function.taken(activation, read))


def _seconds_beside(
    program: Program,
    inputs: tuple[Tensor, ...],
    stage: int,
    call: Callable[[Tensor], object],
    thread: ThreadPoolExecutor,
) -> tuple[float, float]:
    """Run the network once with the lookup beside it; return the seconds to its answer and those of the network."""

    def ask(activation: Tensor) -> float:
        with torch.inference_mode():
            call(activation)
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
