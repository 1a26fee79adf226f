"""Two small networks to validate with: one that gains from batches, and one that does not."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from latebind.bench.rounds import Progress
from latebind.program.build import build_program

PERCEPTRON, RESIDUAL = "perceptron", "residual"
WIDTH, LAYERS = 1024, 12
CHANNELS, BLOCKS, CLASSES = 32, 10, 10
MAX_BATCH = 16
DEPTHS = (2, 4, 4, 6, 8, 10, 12)  # layers of the models that share a memory, of 4 MB each
STAGE_BYTES = {PERCEPTRON: 16 << 20, RESIDUAL: 200 << 10}  # of weights: three stages, in every build


class Perceptron(nn.Module):
    """Layers whose weights take longer to come from memory than a row takes to compute."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1024) float32` to the same."""
        for layer in self.layers:
            x = torch.relu(layer(x))
        return x


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 32, 32, 32) float32` to the same."""
        found: Tensor = torch.relu(x + self.second(torch.relu(self.first(x))))
        return found


class Residual(nn.Module):
    """A small residual network for pictures, which keeps a core busy with every row."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 3, padding=1)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 3, 32, 32) float32` to `(B, 10) float32`."""
        found: Tensor = self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))
        return found


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    PERCEPTRON: (Perceptron, (WIDTH,)),
    RESIDUAL: (Residual, (3, 32, 32)),
}


def build(folder: Path, models: Sequence[str], backend: str, tell: Progress) -> Path:
    """Make a repository of these networks with weights that are drawn; returns it."""
    for number, name in enumerate(models):
        tell(f"building {name}", number / len(models))
        make, shape = NETWORKS[name]
        _build(make, shape, folder, name, backend, STAGE_BYTES[name])
    return folder


def build_many(folder: Path, tell: Progress) -> Path:
    """Make a repository of perceptrons of several depths, two layers to a stage; returns it."""
    for number, layers in enumerate(DEPTHS):
        name = f"perceptron-{number}"
        tell(f"building {name}", number / len(DEPTHS))
        _build(partial(Perceptron, layers), (WIDTH,), folder, name, "eager", 2 * 4 * WIDTH * WIDTH)
    return folder


def _build(
    make: Callable[[], nn.Module], shape: tuple[int, ...], folder: Path, name: str, backend: str, stage_bytes: int
) -> None:
    torch.manual_seed(0)
    build_program(
        make().eval(),
        {"x": torch.randn(MAX_BATCH, *shape)},
        directory=folder / name / "1",
        name=name,
        backends=[backend],
        min_stage_seconds=0.0,
        min_stage_bytes=stage_bytes,
        max_overhead=None,
        max_batch=MAX_BATCH,
        output_names=["y"],
    )
