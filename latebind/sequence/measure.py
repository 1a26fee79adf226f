"""Measures reading and decoder steps on this machine, with the moves of rows: the curves for the scheduler."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from latebind.domain.costs import Curve
from latebind.program.measure import median_seconds, profiled_batches
from latebind.sequence.decoding import Decoding
from latebind.sequence.program import SequenceProgram

FEW = 8  # the most requests that read at the same time
FLOOR = 1e-6  # seconds: a fitted line may start below zero


@torch.inference_mode()
def measure_sequence(
    program: SequenceProgram, tokens: NDArray[np.int64], batches: Sequence[int] = ()
) -> tuple[Curve, Curve, Curve]:
    """Return curves over batch sizes: reading one token, each further token, and a step. `tokens` are example rows.

    By default `batches` are those of all profiles, and one more than each size that steps are compiled for, where their
    cost jumps.
    """
    most = program.spec.max_batch
    jumps = {size + 1 for size in program.sizes if size < most}
    batches = tuple(batches or sorted({*profiled_batches(most), *jumps}))
    lines = [_reading(program, tokens, batch) for batch in batches]
    steps = [_step(program, tokens, batch) for batch in batches]
    first = Curve(batches, tuple(max(FLOOR, base) for base, _ in lines))
    more = Curve(batches, tuple(max(0.0, slope) for _, slope in lines))
    return first, more, Curve(batches, tuple(steps))


def profile_sequence(program: SequenceProgram) -> SequenceProgram:
    """Return the program with costs measured on this machine; lengths of answers stay as they were."""
    rows = np.zeros((1, program.spec.inputs[0].shape[0]), np.int64)
    rows[:] = program.marks.start
    reading, slope, step = measure_sequence(program, rows)
    costs = replace(program.costs, stages=(reading, step), slopes={0: slope})
    return replace(program, costs=costs, costs_fit=True)


@torch.inference_mode()
def warm_up(program: SequenceProgram, largest: int) -> None:
    """Run each batch size up to `largest` once: a backend may spend tens of milliseconds preparing for a new one.

    This covers all steps, and reading for the sizes of groups that catch up with others.
    """
    rows = np.full((1, program.spec.inputs[0].shape[0]), program.marks.start)
    for batch in range(1, min(largest, program.spec.max_batch) + 1):
        for length in program.encoders if batch <= FEW else [min(program.encoders)]:
            decoding = _decoding(program, rows, batch, length)
            decoding.read(range(batch))
        decoding.step(range(batch))


def typical_decoding(program: SequenceProgram) -> Decoding:
    """Return a decoding whose only slot holds a row of medium length."""
    lengths = sorted(program.encoders)
    rows = np.full((1, program.spec.inputs[0].shape[0]), program.marks.start)
    return _decoding(program, rows, 1, lengths[len(lengths) // 2])


def _decoding(program: SequenceProgram, tokens: NDArray[np.int64], batch: int, length: int) -> Decoding:
    """Return a decoding whose slots hold `batch` rows of exactly `length` tokens, none of them padding."""
    rows = tokens[np.arange(batch) % len(tokens)].copy()
    rows[rows == program.marks.padding] = program.marks.end
    rows[:, length:] = program.marks.padding
    return Decoding(program, rows, np.zeros((batch, program.longest_output), np.int64))


def _reading(program: SequenceProgram, tokens: NDArray[np.int64], batch: int) -> tuple[float, float]:
    """Fit a line through the reading times of all encoders; return its value at one token, and its slope."""
    lengths, seconds = list(program.encoders), []
    for length in lengths:
        decoding = _decoding(program, tokens, batch, length)
        seconds.append(median_seconds(partial(decoding.read, range(batch))))
    # An encoder serves all lengths above that of the next shorter one: their mean is its place on the line.
    middles = [(length + before + 1) / 2 for before, length in zip([0, *lengths], lengths, strict=False)]
    if len(lengths) == 1:
        return seconds[0], 0.0
    slope, base = np.polyfit(middles, seconds, 1)
    return float(base + slope), float(slope)


def _step(program: SequenceProgram, tokens: NDArray[np.int64], batch: int) -> float:
    decoding = _decoding(program, tokens, batch, program.spec.inputs[0].shape[0])
    slots: Sequence[int] = range(batch)
    decoding.read(slots)
    return median_seconds(lambda: decoding.step(slots))
