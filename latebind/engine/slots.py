"""The memory that door and engine share: for every model and query, rows ("slots") of its inputs and outputs.

The door owns which slot is free; a slot belongs to one request until the engine has said that it ended. Behind a
model's slots lie the rows of steps (`domain.query.lay_out`), which go with the slot of their query.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec, TensorSpec

ALIGNMENT = 64
Rows: TypeAlias = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class ModelSlots:
    """The slots of one model: arrays `(slots, *shape)` in the order of its inputs and outputs."""

    inputs: tuple[Rows, ...]
    outputs: tuple[Rows, ...]

    def first(self, count: int) -> "ModelSlots":
        """Return so many of them."""
        return ModelSlots(tuple(rows[:count] for rows in self.inputs), tuple(rows[:count] for rows in self.outputs))


class SlotMemory:
    """Maps the shared file `fd`, large enough for it, as `models`' slots, of each as many as `rows` says by its name.

    Both processes see the same rows. `models` are in the order given; `whole` is all of it, as bytes.
    """

    def __init__(self, fd: int, models: Sequence[ModelSpec], rows: Mapping[str, int]) -> None:
        self._map = mmap.mmap(fd, file_bytes(models, rows))
        self.whole = np.frombuffer(self._map, np.uint8)
        self._offset = 0
        self.models = tuple(
            ModelSlots(
                tuple(self._rows(tensor, rows[spec.name]) for tensor in spec.inputs),
                tuple(self._rows(tensor, rows[spec.name]) for tensor in spec.outputs),
            )
            for spec in models
        )
        self.by_name = {spec.name: slots for spec, slots in zip(models, self.models, strict=True)}

    def _rows(self, tensor: TensorSpec, slots: int) -> Rows:
        count = slots * prod(tensor.shape)
        rows = np.frombuffer(self._map, np.dtype(tensor.dtype), count, self._offset)
        self._offset += _aligned(slots * tensor.row_bytes)
        return rows.reshape(slots, *tensor.shape)


def file_bytes(models: Sequence[ModelSpec], rows: Mapping[str, int]) -> int:
    """Return the bytes that all slots take together once each has been used, at least one page.

    The file has a page from when it is first written to, and keeps it.
    """
    tensors = [(rows[spec.name], tensor) for spec in models for tensor in (*spec.inputs, *spec.outputs)]
    return max(mmap.PAGESIZE, sum(_aligned(count * tensor.row_bytes) for count, tensor in tensors))


def create_file() -> int:
    """Return the descriptor of an empty, nameless file in memory; it goes when the last process closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("latebind-slots")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
