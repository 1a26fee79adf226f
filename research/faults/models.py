"""Models that are quick, slow, or raise for some rows."""

from pathlib import Path

import torch
from torch import Tensor, nn

from latebind.program.build import build_program

WIDTH = 16
SLOW_WIDTH = 1024
PICKED = 4


class Scale(nn.Module):
    """A model that multiplies its input by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH,), factor))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16) float32` to `(B, 16) float32`."""
        return x * self.weight


class Slow(nn.Module):
    """Four layers, each of which multiplies `repeats` rows by a square matrix."""

    def __init__(self, repeats: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SLOW_WIDTH, SLOW_WIDTH) for _ in range(4))
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, repeats))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1024) float32` to `(B, 1024) float32`."""
        for layer in self.layers:
            x = torch.tanh(layer(x[:, None, :] * self.factors[:, None]).mean(dim=1))
        return x


class Pick(nn.Module):
    """A model that raises for a row that asks for what is not there."""

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        """Map `(B, 16) float32` and places `(B, 4) int64` of it to the values there, `(B, 4) float32`."""
        return torch.gather(x, 1, i)


def width_of(model: str) -> int:
    """Return the width of a model's input."""
    return SLOW_WIDTH if model == "slow" else WIDTH


def build_models(root: Path, modules: dict[str, nn.Module], *, max_batch: int = 8) -> dict[str, nn.Module]:
    """Make a repository of modules, of which "slow" has a stage for each layer; return them."""
    torch.manual_seed(0)
    for name, module in modules.items():
        rows = {"x": torch.ones(1, width_of(name))}
        if name == "pick":
            rows["i"] = torch.zeros(1, PICKED, dtype=torch.int64)
        build_program(
            module.eval(),
            rows,
            directory=root / name / "1",
            name=name,
            backends=["eager"],
            max_batch=max_batch,
            max_overhead=None,
            min_stage_bytes=4 * SLOW_WIDTH * SLOW_WIDTH if name == "slow" else 0,
        )
    return modules
