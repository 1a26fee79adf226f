"""A model that returns its input, built for latebind as one of the servers that are compared."""

from pathlib import Path

import torch
from torch import Tensor, nn

from latebind.program.build import build_program

IDENTITY = "identity"
WIDTH = 16
LARGEST = 32  # rows of a batch, as the peers have it


class Identity(nn.Module):
    """Returns its input."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16) float32` to the same."""
        return x * 1.0


def build_identity(folder: Path) -> Path:
    """Make a repository with `identity` and return it."""
    example = {"x": torch.zeros(2, WIDTH)}
    build_program(
        Identity(),
        example,
        directory=folder / IDENTITY / "1",
        name=IDENTITY,
        backends=["eager"],
        max_batch=LARGEST,
        output_names=["y"],
    )
    return folder
