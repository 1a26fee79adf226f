"""Rows of sequences at the border: filled up to the width of their slots on the way in, trimmed on the way out."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec, TensorSpec

Rows: TypeAlias = NDArray[Any]


def room(place: Rows, shape: Sequence[int], spec: TensorSpec) -> Rows:
    """Return what a row of this shape takes of its place, of the tensor's shape; padding goes into the rest."""
    if spec.padding is None:
        return place
    place[shape[0] :] = spec.padding
    return place[: shape[0]]


def trimmed(rows: Rows, spec: TensorSpec) -> Rows:
    """Return the rows without the columns that are padding in all of them; the first one stays."""
    return rows if spec.padding is None else rows[:, : max(lengths(rows, spec.padding), default=1)]


def steps(spec: ModelSpec, rows: Mapping[str, Iterable[Rows]]) -> tuple[int, ...]:
    """Return how many steps the input of each row has; none where the model reads no sequence."""
    for tensor in spec.inputs:
        padding = tensor.padding
        if padding is not None:
            return tuple([length for row in rows[tensor.name] for length in lengths(row[np.newaxis], padding)])
    return ()


def lengths(rows: Rows, padding: int) -> list[int]:
    """Return how many tokens each of the rows `(N, L)` has up to its padding, 1 at least."""
    counts = rows != padding
    found: list[int] = np.where(counts.any(axis=1), rows.shape[1] - counts[:, ::-1].argmax(axis=1), 1).tolist()
    return found
