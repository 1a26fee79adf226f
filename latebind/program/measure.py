"""Measures calls, in seconds: medians of interleaved runs, so that disturbances affect all calls alike."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.domain.model import TensorSpec
from latebind.program.backends import StageFunction
from latebind.program.device import HOST, synchronize

MIN_RUNS, MAX_RUNS = 5, 60
SECONDS_EACH = 0.1  # spent on one measurement, after MIN_RUNS

Returned = TypeVar("Returned")


def timed(call: Callable[[], Returned]) -> tuple[Returned, float]:
    """Return what one call returns, and the seconds until the device has computed it.

    All that builds measure of calls goes through here, so that tests can put a call's work in the place of its time.
    """
    start = perf_counter()
    found = call()
    synchronize(found)
    return found, perf_counter() - start


def time_call(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes, until the device has computed what it returns."""
    return timed(call)[1]


def median_seconds(call: Callable[[], object]) -> float:
    """Return the median time of a call, after two warm-up calls."""
    synchronize(call())
    synchronize(call())
    first = time_call(call)
    return median(time_call(call) for _ in range(_runs(first)))


def interleaved_seconds(calls: Mapping[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Return `runs` times for each call, taken in turn after two warm-up calls each."""
    for call in calls.values():
        synchronize(call())
        synchronize(call())
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(runs):
        for name, call in calls.items():
            found[name].append(time_call(call))
    return found


def run_chain(stages: Sequence[StageFunction], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs of the last stage."""
    for stage in stages:
        inputs = stage(*inputs)
    return inputs


def profile_stages(
    stages: Sequence[StageFunction], inputs: tuple[Tensor, ...], batches: Sequence[int]
) -> tuple[Curve, ...]:
    """Return each stage's latency over `batches`; `inputs` are example rows of the model, repeated as needed.

    Stages run one after another, as they do when served: by itself, a stage may find all its weights in the cache.
    """
    by_batch = [_seconds_of_stages(stages, with_batch(inputs, batch)) for batch in batches]
    return tuple(Curve(tuple(batches), row) for row in zip(*by_batch, strict=True))


def _seconds_of_stages(stages: Sequence[StageFunction], inputs: tuple[Tensor, ...]) -> tuple[float, ...]:
    """Return the median time of each stage, after two warm-up runs of all."""

    def run() -> list[float]:
        passed, seconds = inputs, []
        for stage in stages:
            passed, took = timed(partial(stage, *passed))
            seconds.append(took)
        return seconds

    run()
    run()
    first = run()
    rows = [run() for _ in range(_runs(sum(first) / len(stages)))]
    return tuple(median(each) for each in zip(*rows, strict=True))


def _runs(seconds: float) -> int:
    return max(MIN_RUNS, min(MAX_RUNS, int(SECONDS_EACH / max(seconds, 1e-6))))


def profiled_batches(max_batch: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... up to `max_batch`, which is always the last."""
    powers = [1 << i for i in range(max_batch.bit_length()) if 1 << i < max_batch]
    return (*powers, max_batch)


def with_batch(inputs: tuple[Tensor, ...], batch: int) -> tuple[Tensor, ...]:
    """Return `batch` rows of the inputs, repeating them as needed."""
    return tuple(tensor[torch.arange(batch) % tensor.shape[0]].contiguous() for tensor in inputs)


def made_up_inputs(specs: Sequence[TensorSpec], batch: int, *, device: torch.device = HOST) -> tuple[Tensor, ...]:
    """Return normal random numbers for floating-point inputs, and zeros, or the least that is valid, for others."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for spec in specs:
        dtype: torch.dtype = getattr(torch, spec.dtype)
        shape = (batch, *spec.shape)
        numbers = (
            torch.randn(shape, generator=generator)
            if dtype.is_floating_point
            else torch.full(shape, float(spec.filler))
        )
        made.append(numbers.to(device, dtype))
    return tuple(made)
