"""What the base model made of rows behind one boundary, on disk: written once, then mapped by whoever trains on it.

Activations lie in a flat file, half as long as they were (bfloat16), in an order that was shuffled once.
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
from latebind.learned.activations import laid_out
from latebind.learned.train import Lesson
from latebind.repository.directory import write_bytes
from latebind.repository.tensors import tensor_bytes

HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Recorded:
    """The rows behind a boundary: `activations` `(N, *shape) bfloat16`, mapped, and what the base model answered.

    The first `learn` rows are for a predictor, the others it must not see. `answers` `(N, classes) float32`, `labels`
    `(N,) int64` where the true classes are known.
    """

    activations: Tensor
    answers: Tensor
    labels: Tensor | None
    learn: int

    def seen(self) -> Lesson:
        """Return the rows that a predictor learns from."""
        labels = self.labels[: self.learn] if self.labels is not None else None
        return Lesson(self.activations[: self.learn], self.answers[: self.learn], labels)

    def unseen(self) -> Lesson:
        """Return the rows that are new to it."""
        labels = self.labels[self.learn :] if self.labels is not None else None
        return Lesson(self.activations[self.learn :], self.answers[self.learn :], labels)


def row_bytes(shape: tuple[int, ...]) -> int:
    """Return what one row of activations takes on disk."""
    return HALF_BYTES * prod(shape)


def make_room(stem: Path, rows: int, shape: tuple[int, ...]) -> Tensor:
    """Make a file for activations and return it as `(rows, *shape) bfloat16` to be filled.

    Raises `ConfigError` where the disk has no room: writing to a mapped file that cannot grow would kill the process.
    """
    path = stem.with_suffix(".bin")
    try:
        with path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, rows * row_bytes(shape))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise ConfigError(f"{path} cannot be written ({error}): make room, or give less with --disk") from None
    return _mapped(path, rows, shape, shared=True)


def complete(stem: Path, answers: Tensor, labels: Tensor | None, *, learn: int) -> None:
    """Write what belongs to the activations. It comes last: activations without it are not whole."""
    tensors = {"answers": answers, "learn": torch.tensor(learn)}
    if labels is not None:
        tensors["labels"] = labels
    write_bytes(stem.with_suffix(".safetensors"), tensor_bytes(tensors))


def recorded(stem: Path, shape: tuple[int, ...]) -> Recorded | None:
    """Return what lies there, mapped and not read, or None if it is not whole."""
    beside, path = stem.with_suffix(".safetensors"), stem.with_suffix(".bin")
    if not beside.is_file() or not path.is_file():
        return None
    tensors: Mapping[str, Tensor] = load_file(beside)
    rows = len(tensors["answers"])
    if path.stat().st_size != rows * row_bytes(shape):
        return None
    activations = _mapped(path, rows, shape, shared=False)
    return Recorded(activations, tensors["answers"], tensors.get("labels"), int(tensors["learn"]))


def forget(stem: Path) -> None:
    """Delete activations and what belongs to them."""
    for suffix in (".safetensors", ".bin"):
        stem.with_suffix(suffix).unlink(missing_ok=True)


def _mapped(path: Path, rows: int, shape: tuple[int, ...], *, shared: bool) -> Tensor:
    flat = torch.from_file(str(path), shared=shared, size=rows * prod(shape), dtype=torch.bfloat16)
    return laid_out(flat, shape)
