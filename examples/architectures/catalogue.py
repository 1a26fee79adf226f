"""An architecture to try: how to make it with random weights, and rows of its inputs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from latebind.domain.sizes import Dim, Size

Rows = dict[str, Tensor]
Library = Any  # a module that may not be installed

ROWS = 4
# plain: small modules of ours that need no library; lengths: networks whose rows differ in size
SOURCES = ("torchvision", "timm", "transformers", "plain", "lengths")


@dataclass(frozen=True, slots=True)
class Architecture:
    """A network to build: `make` makes it, `rows` are its inputs, `outputs` are served (all if none are named).

    If it must be `refused`, that is a part of the expected message. For `dims` and `sizes` see `build_program`.
    """

    make: Callable[[], nn.Module]
    rows: Callable[[], Rows]
    refused: str = ""
    outputs: tuple[str, ...] = ()
    dims: tuple[Dim, ...] = ()
    sizes: Mapping[str, Sequence[Size]] | None = None


Catalogue = Mapping[str, Architecture]


def catalogue_of(source: str) -> Catalogue:
    """Return the architectures of a library; raises `ImportError` or `RuntimeError` where it cannot be imported."""
    found: Catalogue = import_module(f"examples.architectures.from_{source}").ARCHITECTURES
    return found


def images(side: int = 64, *, channels: int = 3, name: str = "x") -> Callable[[], Rows]:
    """Return a function that draws rows `(4, channels, side, side) float32` under this name."""
    return lambda: {name: torch.randn(ROWS, channels, side, side)}


def words(length: int = 16, *, known: int = 200, mask: bool = True) -> Callable[[], Rows]:
    """Return a function that draws texts `(4, length) int64` and, with `mask`, which words of them count."""

    def draw() -> Rows:
        rows = {"input_ids": torch.randint(3, known, (ROWS, length))}
        if not mask:
            return rows
        counts = torch.arange(length) < torch.randint(length // 2, length + 1, (ROWS, 1))
        return {**rows, "attention_mask": counts.long()}

    return draw
