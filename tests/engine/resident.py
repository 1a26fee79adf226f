"""A model of wide layers, and what lies in memory of a process, as the system tells anybody who looks from outside."""

from pathlib import Path

import torch
from torch import Tensor, nn

KIB = 1024
MB = 1_000_000
WIDTH = 512  # a matrix of a megabyte


def mapped_bytes(process: int | str, file: Path) -> int:
    """Return how much of a file that a process has mapped is present."""
    found, inside = 0, False
    for line in Path(f"/proc/{process}/smaps").read_text().splitlines():
        key = line.split(maxsplit=1)[0]
        if not key.endswith(":"):
            inside = line.endswith(str(file))
        elif inside and key == "Rss:":
            found += int(line.split()[1]) * KIB
    return found


class Tied(nn.Module):
    """Four wide layers; the last multiplies by the matrix of the first."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, WIDTH) float32` to the same."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        return nn.functional.linear(x, first.weight)
