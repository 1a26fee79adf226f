"""What a lookup costs where it will run: between the stages of its network or beside it, not in a loop of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.learned.lookup import LookupFunction
from latebind.program.backends import StageFunction
from latebind.program.measure import profiled_batches, time_call, with_batch
from latebind.program.program import Program

RUNS, WARM_RUNS = 23, 3  # of the whole network, for each batch size


@dataclass(frozen=True, slots=True)
class SureLookup:
    """A lookup behind `stage` that answers everybody who gets there."""

    stage: int
    function: LookupFunction


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
    return _curve(program, row, lambda inputs: _seconds_in_place(program.stages, inputs, stage, function)[0])


def latency_before_sure(
    program: Program, row: tuple[Tensor, ...], stage: int, function: LookupFunction, sure: SureLookup
) -> Curve:
    """Measure a lookup where one that is sure ends the way of those whom it misses.

    That is smaller than the network, which never runs then, and leaves more in the caches near the core: 0.38 ms for
    0.53 before ResNet-56 in eight bits, and 0.18 in a loop of its own.
    """
    stages = program.stages[: sure.stage + 1]

    def once(inputs: tuple[Tensor, ...]) -> float:
        seconds, passed = _seconds_in_place(stages, inputs, stage, function)
        if function is not sure.function:
            sure.function(passed[0])
        return seconds

    return _curve(program, row, once)


def seconds_before_sure(lookups: Sequence[tuple[Curve, Curve | None]]) -> tuple[float, ...] | None:
    """Return seconds at batch 1 before a lookup that is sure, of the curves of lookups without and with one.

    None where they were measured of none.
    """
    if all(before is None for _, before in lookups):
        return None
    return tuple((usual if before is None else before).at(1) for usual, before in lookups)


def _curve(program: Program, row: tuple[Tensor, ...], once: Callable[[tuple[Tensor, ...]], float]) -> Curve:
    """Return the median of what `once` says of inputs, for each batch size."""
    batches = profiled_batches(program.spec.max_batch)
    seconds = []
    for batch in batches:
        inputs = with_batch(row, batch)
        found = [once(inputs) for _ in range(RUNS)]
        seconds.append(median(found[WARM_RUNS:]))
    return Curve(batches, tuple(seconds))


def _seconds_in_place(
    stages: Sequence[StageFunction], inputs: tuple[Tensor, ...], stage: int, function: LookupFunction
) -> tuple[float, tuple[Tensor, ...]]:
    """Run the stages once with the lookup behind `stage`; return the seconds of the lookup, and what comes out."""
    passed, seconds = inputs, 0.0
    for number, run in enumerate(stages):
        passed = run(*passed)
        if number == stage:
            seconds = time_call(partial(function, passed[0]))
    return seconds, passed


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
