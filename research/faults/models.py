"""Models for these benchmarks: one whose answer shows its version, and a slow one."""

from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from latebind.program.build import Progress, build_program, ignore_progress
from latebind.repository.directory import MODEL, ModelDirectory, json_bytes

WIDTH = 16
SLOW_WIDTH = 1024
PICKED = 4
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


class Pick(nn.Module):
    """A model that raises for a row that asks for what is not there."""

    def forward(self, x: Tensor, i: Tensor) -> Tensor:
        """Map `(B, 16) float32` and places `(B, 4) int64` of it to the values there, `(B, 4) float32`."""
        return torch.gather(x, 1, i)


def build_mixed(root: Path) -> dict[str, nn.Module]:
    """Make four models, two quick, one slow, one that some rows make raise; return them by name."""
    torch.manual_seed(0)
    found: dict[str, nn.Module] = {"twice": Scale(2.0), "thrice": Scale(3.0), "slow": Slow(4, 64), "pick": Pick()}
    for name, module in found.items():
        width = SLOW_WIDTH if name == "slow" else WIDTH
        rows = {"x": torch.ones(1, width)}
        if name == "pick":
            rows["i"] = torch.zeros(1, PICKED, dtype=torch.int64)
        stage_bytes = 4 * SLOW_WIDTH * SLOW_WIDTH if name == "slow" else 0
        _build(module, rows, root / name / "1", name=name, max_batch=8, min_stage_bytes=stage_bytes)
    return found


def build_scale(folder: Path) -> None:
    """Make `folder/0` and `folder/1`, from which `publish` makes any version."""
    for number, factor in enumerate(FACTORS):
        _build(Scale(factor), {"x": torch.ones(1, WIDTH)}, folder / str(number), name="scale", max_batch=8)


def build_slow(root: Path, *, layers: int, repeats: int, progress: Progress = ignore_progress) -> None:
    """Make the model `slow`, which takes one row at a time; it is run some fifty times, to measure its stages.

    Each layer is a stage, so that all stages take about as long.
    """
    torch.manual_seed(0)
    _build(
        Slow(layers, repeats),
        {"x": torch.ones(1, SLOW_WIDTH)},
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
    rows: dict[str, Tensor],
    directory: Path,
    *,
    name: str,
    max_batch: int,
    min_stage_bytes: int = 0,
    progress: Progress = ignore_progress,
) -> None:
    build_program(
        module.eval(),
        rows,
        directory=directory,
        name=name,
        backends=["eager"],
        max_batch=max_batch,
        max_overhead=None,
        min_stage_bytes=min_stage_bytes,
        progress=progress,
    )
