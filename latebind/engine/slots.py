"""The memory that door and engine share: rows ("slots") of inputs and outputs for every model and query.

The door decides which slots are free. A slot belongs to one request until the engine has reported that it ended. Behind
a model's own slots lie the rows of query steps (`domain.query.lay_out`), which belong to the slot of their query.

With each answer of a model that has learned caches, the worker notes there which version of them it used: what was
adopted between a request and its reply must not be blamed for it.
"""

import mmap
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.owners import Owners

ALIGNMENT = 64
VERSION = TensorSpec("version", "int32", ())  # of the learned caches that answered
Rows: TypeAlias = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class ModelSlots:
    """The slots of one model: arrays `(slots, *shape)`, in the order of its inputs and outputs.

    `versions`, `(slots,) int32`, is the version of the learned caches that each answer was given by, as a number
    (`adaptation.controller.number_of`); it has no slots where the model has no learned caches.
    """

    inputs: tuple[Rows, ...]
    outputs: tuple[Rows, ...]
    versions: Rows = field(default_factory=lambda: np.zeros(0, np.int32))

    def first(self, count: int) -> "ModelSlots":
        """Return the first `count` slots."""
        return ModelSlots(
            tuple(rows[:count] for rows in self.inputs),
            tuple(rows[:count] for rows in self.outputs),
            self.versions[:count],
        )


class SlotMemory:
    """Maps the shared file `fd` as the slots of `models`; `rows` gives the number of rows of each model by name.

    The file must be large enough (`file_bytes`). Both processes see the same rows if they pass the same models in the
    same order. `whole` is the whole memory as bytes. `owners` is for the engine: who has which slot while it runs.
    """

    def __init__(self, fd: int, models: Sequence[ModelSpec], rows: Mapping[str, int]) -> None:
        self._map = mmap.mmap(fd, file_bytes(models, rows))
        self.whole = np.frombuffer(self._map, np.uint8)
        self.owners = Owners()
        self._offset = 0
        self.models = tuple(
            ModelSlots(
                tuple(self._rows(tensor, rows[spec.name]) for tensor in spec.inputs),
                tuple(self._rows(tensor, rows[spec.name]) for tensor in spec.outputs),
                self._rows(VERSION, rows[spec.name] if spec.lookups else 0),
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
    """Return the size of the shared file in bytes, at least one page.

    Pages are allocated when they are first written to, and stay allocated.
    """
    tensors = [(rows[spec.name], tensor) for spec in models for tensor in (*spec.inputs, *spec.outputs)]
    tensors += [(rows[spec.name], VERSION) for spec in models if spec.lookups]
    return max(mmap.PAGESIZE, sum(_aligned(count * tensor.row_bytes) for count, tensor in tensors))


def create_file() -> int:
    """Return the descriptor of an empty, nameless file in memory; it vanishes when the last process closes it."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("latebind-slots")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
