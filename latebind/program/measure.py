"""Measures calls, in seconds: medians of runs that had the processor to themselves, if there are enough of them.

Calls that are compared take turns, so that a slow moment affects all alike. Processor time is measured beside wall
time: if it falls behind during a run, another process had the core, and the run is repeated.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from math import prod
from statistics import median
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.random import default_rng  # in the fork server, for all engines

from latebind.domain.costs import Curve, Grid
from latebind.domain.model import TensorSpec, is_floating
from latebind.domain.sizes import Dim
from latebind.program.arrays import BFLOAT16, Arrays, tensors_over
from latebind.program.device import synchronize
from latebind.program.lengths import resized
from latebind.program.metadata import profiled_sizes

MIN_RUNS, MAX_RUNS = 5, 60
SECONDS_EACH = 0.1  # spent on one measurement, after MIN_RUNS
LONG, FEW_RUNS = 1.0, 3  # seconds from which few runs are enough, counting the second warm-up run
TRIES = 3  # times as many runs at most, if others interrupt them
ALONE = 0.9  # the share of its seconds that a run must have been on a core
MOST_SECONDS = 0.5  # that a batch may take for a larger one to be measured, if there are many lengths
STEADY = 3.0  # how many times as long as the fastest tenth of the runs the slowest tenth may take

if TYPE_CHECKING:
    from torch import Tensor

Returned = TypeVar("Returned")


def timed(call: Callable[[], Returned]) -> tuple[Returned, float]:
    """Return what one call returns, and the seconds until the device has computed it.

    Builds measure all calls here, so that tests can replace a call's time by its work.
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
    return median(interleaved({"": call})[""])


def interleaved(calls: Mapping[str, Callable[[], object]], runs: int | None = None) -> dict[str, list[float]]:
    """Return the seconds of calls that take turns for about `runs` rounds, after two warm-up calls each.

    Rounds in which one was interrupted are left out, unless nearly all were.
    """
    rows = _rounds(lambda: [time_call(call) for call in calls.values()], runs)
    return dict(zip(calls, map(list, zip(*rows, strict=True)), strict=False))


def spread_of(seconds: Mapping[str, Sequence[float]]) -> float:
    """Return how many times as long as a call's fastest tenth of runs its slowest tenth took: the most of all calls."""
    ranked = [sorted(each) for each in seconds.values() if each]
    return max((each[int(0.9 * len(each))] / each[int(0.1 * len(each))] for each in ranked), default=1.0)


def _rounds(run: Callable[[], list[float]], runs: int | None = None, *, most: int = MAX_RUNS) -> list[list[float]]:
    """Return what each run took, after two warm-up runs: `runs` of them, or as many as are worth the time.

    These are at most `most`, and a few if runs are long. Only runs that had the processor to themselves count, unless
    there are hardly any.
    """
    alone: list[list[float]] = []
    every: list[list[float]] = []

    def count() -> list[float]:
        began = process_time()
        every.append(run())
        if process_time() - began >= ALONE * sum(every[-1]):
            alone.append(every[-1])
        return every[-1]

    run()
    took = count()
    long = runs is None and sum(took) >= LONG
    if long:
        runs = min(FEW_RUNS, MIN_RUNS)
    else:
        alone.clear()
        every.clear()
    if runs is None:
        runs = max(MIN_RUNS, min(most, int(SECONDS_EACH * len(took) / max(sum(took), 1e-6))))
    while len(alone) < runs and len(every) < TRIES * runs:
        count()
    return alone if len(alone) >= min(runs, MIN_RUNS) else every


def profile_stages(
    stages: Sequence[Callable[..., tuple[Any, ...]]],
    inputs: tuple[Any, ...],
    batches: Sequence[int],
    *,
    specs: Sequence[TensorSpec] = (),
    dims: Sequence[Dim] = (),
    over: Sequence[dict[str, int]] = (),
) -> tuple[Grid, ...]:
    """Return each stage's latency over `batches`; `inputs` are example rows of the model, repeated as needed.

    With named dimensions `dims`, in terms of which `specs` give the sizes of inputs, it is also over lengths from the
    smallest to the largest, or over the sizes `over`, by ascending length. Those take turns, as when served: OpenVINO
    takes up to a fifth longer after a batch of another length. Batches that would take long are left out, except those
    of one row.

    Stages run one after another, as they do when served: by itself, a stage may find all its weights in the cache.
    """

    def seconds_of(passed: tuple[Any, ...]) -> list[float]:
        seconds = []
        for stage in stages:
            passed, took = timed(partial(stage, *passed))
            seconds.append(took)
        return seconds

    sizes = over or profiled_sizes(dims)
    found: list[list[list[float]]] = [[] for _ in sizes]  # by length and batch: the seconds of each stage
    for batch in batches:
        taken = [place for place, each in enumerate(found) if not (dims and each and sum(each[-1]) > MOST_SECONDS)]
        rows = [with_batch(resized(inputs, specs, sizes[place]) if dims else inputs, batch) for place in taken]
        run = partial(lambda rows: [second for each in rows for second in seconds_of(each)], rows)
        rounds = _rounds(run, most=MAX_RUNS // len(taken))  # neighbouring lengths take about as long
        middle = iter([median(each) for each in zip(*rounds, strict=True)])
        for place in taken:
            found[place].append(list(islice(middle, len(stages))))
    lengths = tuple(prod(each.values()) for each in sizes)
    return tuple(
        Grid(lengths, tuple(Curve(tuple(batches[: len(each)]), tuple(row[stage] for row in each)) for each in found))
        for stage in range(len(stages))
    )


def with_batch(inputs: tuple[Any, ...], batch: int) -> tuple[Any, ...]:
    """Return `batch` rows of the inputs, tensors or arrays, repeating them as needed."""
    return tuple(rows[[place % len(rows) for place in range(batch)]] for rows in inputs)


def made_up_inputs(specs: Sequence[TensorSpec], batch: int) -> Arrays:
    """Return normal random numbers for floating-point inputs; for others zeros, or the smallest valid number."""
    generator = default_rng(0)
    made = []
    for spec in specs:
        shape = (batch, *spec.shape)
        if spec.dtype == BFLOAT16:
            bits = generator.standard_normal(shape, np.float32).view(np.uint32)
            made.append((bits >> 16).astype(np.uint16))
        elif is_floating(spec.dtype):
            made.append(generator.standard_normal(shape).astype(spec.dtype))
        else:
            made.append(np.full(shape, spec.filler, spec.dtype))
    return tuple(made)


def made_up_tensors(specs: Sequence[TensorSpec], batch: int, device: str) -> tuple["Tensor", ...]:
    """Return the same as tensors on a device."""
    return tuple(rows.to(device) for rows in tensors_over(made_up_inputs(specs, batch), specs))
