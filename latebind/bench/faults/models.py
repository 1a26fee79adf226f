"""Models for these benchmarks: one whose answer shows its version, and a slow one."""

from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from latebind.program.build import Progress, build_program, ignore_progress
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes

WIDTH = 16
SLOW_WIDTH = 1024
FACTORS = (2.0, 3.0)  # of even and of odd versions


class Scale(nn.Module):
    """A model that multiplies its input by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((WIDTH,), factor))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 16) float32` to `(B, 16) float32`."""
        return x * self.weight


class Slow(nn.Module):
    """So many layers, each of which multiplies `repeats` rows by a square matrix."""

    def __init__(self, layers: int, repeats: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(SLOW_WIDTH, SLOW_WIDTH) for _ in range(layers))
        self.factors = nn.Parameter(torch.linspace(0.5, 1.5, repeats))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1024) float32` to `(B, 1024) float32`."""
        for layer in self.layers:
            x = torch.tanh(layer(x[:, None, :] * self.factors[:, None]).mean(dim=1))
        return x


def build_scale(folder: Path) -> None:
    """Make `folder/0` and `folder/1`, from which `publish` makes any version."""
    for number, factor in enumerate(FACTORS):
        _build(Scale(factor), WIDTH, folder / str(number), name="scale", max_batch=8)


def build_slow(root: Path, *, layers: int, repeats: int, progress: Progress = ignore_progress) -> None:
    """Make the model `slow`, which takes one row at a time; it is run some fifty times, to measure its stages.

    Each layer is a stage, so that all stages take about as long.
    """
    torch.manual_seed(0)
    _build(
        Slow(layers, repeats),
        SLOW_WIDTH,
        root / "slow" / "1",
        name="slow",
        max_batch=1,
        min_stage_bytes=4 * SLOW_WIDTH * SLOW_WIDTH,
        progress=progress,
    )


def publish(folder: Path, root: Path, version: int) -> None:
    """Put a version of `scale` into a repository, in one rename."""
    source = ModelDirectory.open(folder / str(version % 2))
    files = {name: source.read(name) for name in source.files}
    described = msgspec.json.decode(files[MODEL])
    files[MODEL] = json_bytes({**described, "version": str(version)})
    ModelDirectory.create(root / "scale" / str(version), files)


def right(version: str, value: float) -> bool:
    """Tell whether this is the answer of a version of `scale` to 1."""
    return value == FACTORS[int(version) % 2]


def _build(
    module: nn.Module,
    width: int,
    directory: Path,
    *,
    name: str,
    max_batch: int,
    min_stage_bytes: int = 0,
    progress: Progress = ignore_progress,
) -> None:
    build_program(
        module.eval(),
        {"x": torch.ones(1, width)},
        directory=directory,
        name=name,
        backends=["eager"],
        max_batch=max_batch,
        max_overhead=None,
        min_stage_bytes=min_stage_bytes,
        progress=progress,
    )
