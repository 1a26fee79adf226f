"""The memory that door and engine share: for every model, rows ("slots") of its inputs and outputs.

The door owns which slot is free; a slot belongs to one request until the engine has said that it ended.
"""

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec, TensorSpec

ALIGNMENT = 64
Rows = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class ModelSlots:
    """The slots of one model: arrays `(slots, *shape)` in the order of its inputs and outputs."""

    inputs: tuple[Rows, ...]
    outputs: tuple[Rows, ...]


class SlotMemory:
    """Maps the shared file `fd`, large enough for it, as the slots of `models`; both processes see the same rows.

    `whole` is all of it, as bytes.
    """

    def __init__(self, fd: int, models: Sequence[ModelSpec], slots: int) -> None:
        self._map = mmap.mmap(fd, file_bytes(models, slots))
        self.whole = np.frombuffer(self._map, np.uint8)
        self._offset = 0
        self.models = tuple(
            ModelSlots(
                tuple(self._rows(tensor, slots) for tensor in spec.inputs),
                tuple(self._rows(tensor, slots) for tensor in spec.outputs),
            )
            for spec in models
        )

    def _rows(self, tensor: TensorSpec, slots: int) -> Rows:
        count = slots * prod(tensor.shape)
        rows = np.frombuffer(self._map, np.dtype(tensor.dtype), count, self._offset)
        self._offset += _aligned(slots * tensor.row_bytes)
        return rows.reshape(slots, *tensor.shape)


def file_bytes(models: Sequence[ModelSpec], slots: int) -> int:
    """Return the bytes that the slots of all models take together, at least one page."""
    tensors = [tensor for spec in models for tensor in (*spec.inputs, *spec.outputs)]
    return max(mmap.PAGESIZE, sum(_aligned(slots * tensor.row_bytes) for tensor in tensors))


def create_file() -> int:
    """Return the descriptor of an empty, nameless file in memory; it goes when the last process closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("latebind-slots")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
