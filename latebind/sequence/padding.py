"""Padding of sequences at the frontend: rows are padded to the width of their slots, and answers are trimmed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.domain.sizes import Dim

Rows: TypeAlias = NDArray[Any]
LENGTH = "length"  # of the rows of a sequence model


def lengths_named(spec: ModelSpec) -> ModelSpec:
    """Return a model with the length of its sequences as a named dimension, as all else that varies is one."""
    longest = [tensor.shape[0] for tensor in spec.inputs if tensor.padding is not None]
    if spec.dims or not longest:
        return spec
    inputs = [tensor if tensor.padding is None else replace(tensor, sizes=(LENGTH,)) for tensor in spec.inputs]
    return replace(spec, inputs=tuple(inputs), dims=(Dim(LENGTH, 1, min(longest)),))


def room(place: Rows, shape: Sequence[int], spec: TensorSpec) -> Rows:
    """Return the part of `place` (the tensor's shape) that a row of this shape fills; the rest is set to padding."""
    if spec.padding is None:
        return place
    place[shape[0] :] = spec.padding
    return place[: shape[0]]


def trimmed(rows: Rows, spec: TensorSpec) -> Rows:
    """Return the rows without the columns that are padding in all of them; the first column always stays."""
    return rows if spec.padding is None else rows[:, : max(lengths(rows, spec.padding), default=1)]


def steps(spec: ModelSpec, rows: Mapping[str, Iterable[Rows]]) -> tuple[int, ...]:
    """Return the input length of each row, in steps; empty if the model reads no sequence."""
    for tensor in spec.inputs:
        padding = tensor.padding
        if padding is not None:
            return tuple([length for row in rows[tensor.name] for length in lengths(row[np.newaxis], padding)])
    return ()


def lengths(rows: Rows, padding: int) -> list[int]:
    """Return the number of tokens of each row `(N, L)` up to its padding, at least 1."""
    counts = rows != padding
    found: list[int] = np.where(counts.any(axis=1), rows.shape[1] - counts[:, ::-1].argmax(axis=1), 1).tolist()
    return found
