"""Recorded activations of one boundary on disk: written once, then mapped into memory by each training.

Activations lie in a flat file in bfloat16, which halves them. The rows were shuffled once before they were recorded.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.learned.activations import in_shape
from latebind.learned.train import Lesson
from latebind.repository.directory import write_bytes
from latebind.repository.tensors import tensor_bytes

HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Recorded:
    """The recorded rows of a boundary: `activations` `(N, *shape) bfloat16`, mapped, and the base model's answers.

    The first `learn` rows train the predictor, which must not see the others. `answers` are `(N, classes) float32`,
    `labels` `(N,) int64` if the true classes are known.
    """

    activations: Tensor
    answers: Tensor
    labels: Tensor | None
    learn: int

    def seen(self) -> Lesson:
        """Return the rows that the predictor learns from."""
        labels = self.labels[: self.learn] if self.labels is not None else None
        return Lesson(self.activations[: self.learn], self.answers[: self.learn], labels)

    def unseen(self) -> Lesson:
        """Return the rows that the predictor has not seen."""
        labels = self.labels[self.learn :] if self.labels is not None else None
        return Lesson(self.activations[self.learn :], self.answers[self.learn :], labels)


def row_bytes(shape: tuple[int, ...]) -> int:
    """Return the bytes that one row of activations takes on disk."""
    return HALF_BYTES * prod(shape)


def allocate_activations(stem: Path, rows: int, shape: tuple[int, ...]) -> Tensor:
    """Allocate a file for activations and return it, mapped, as `(rows, *shape) bfloat16` to be filled.

    Raises `ConfigError` if the disk has no room. Without allocation, a write to the mapped file would kill the process.
    """
    path = stem.with_suffix(".bin")
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, rows * row_bytes(shape))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written ({error}): make room, or give less with --disk") from None
    return _mapped(path, rows, shape, shared=True)


def mark_complete(stem: Path, answers: Tensor, labels: Tensor | None, *, learn: int) -> None:
    """Write the answers and labels of the activations. They come last: activations without them are incomplete."""
    tensors = {"answers": answers, "learn": torch.tensor(learn)}
    if labels is not None:
        tensors["labels"] = labels
    write_bytes(stem.with_suffix(".safetensors"), tensor_bytes(tensors))


def load_recorded(stem: Path, shape: tuple[int, ...]) -> Recorded | None:
    """Return what was recorded, mapped and not read yet, or None if it is incomplete."""
    beside, path = stem.with_suffix(".safetensors"), stem.with_suffix(".bin")
    if not beside.is_file() or not path.is_file():
        return None
    tensors: Mapping[str, Tensor] = load_file(beside)
    rows = len(tensors["answers"])
    if path.stat().st_size != rows * row_bytes(shape):
        return None
    activations = _mapped(path, rows, shape, shared=False)
    return Recorded(activations, tensors["answers"], tensors.get("labels"), int(tensors["learn"]))


def delete_recorded(stem: Path) -> None:
    """Delete the activations with their answers and labels."""
    for suffix in (".safetensors", ".bin"):
        stem.with_suffix(suffix).unlink(missing_ok=True)


def _mapped(path: Path, rows: int, shape: tuple[int, ...], *, shared: bool) -> Tensor:
    flat = torch.from_file(str(path), shared=shared, size=rows * prod(shape), dtype=torch.bfloat16)
    return in_shape(flat, shape)
