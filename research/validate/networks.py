"""Two small networks to validate with: one that gains from batches, and one that does not."""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from latebind.bench.rounds import Progress
from latebind.program.build import build_program

WIDTH, LAYERS = 1024, 12
CHANNELS, BLOCKS, CLASSES = 32, 10, 10
MAX_BATCH = 16


def perceptron() -> nn.Module:
    """Return layers whose weights take longer to come from memory than a row `(1024,)` takes to compute."""
    return nn.Sequential(*[one for _ in range(LAYERS) for one in (nn.Linear(WIDTH, WIDTH), nn.ReLU())])


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 32, 32, 32) float32` to the same."""
        return torch.relu(x + self.second(torch.relu(self.first(x))))


def residual() -> nn.Module:
    """Return a small residual network for pictures `(3, 32, 32)`, which keeps a core busy with every row."""
    stem, head = nn.Conv2d(3, CHANNELS, 3, padding=1), nn.Linear(CHANNELS, CLASSES)
    blocks = [Block() for _ in range(BLOCKS)]
    return nn.Sequential(stem, nn.ReLU(), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    # how it is made, the shape of a row, and the bytes of weights of a stage: three stages, in every build
    "perceptron": (perceptron, (WIDTH,), 16 << 20),
    "residual": (residual, (3, 32, 32), 200 << 10),
}


def build(folder: Path, models: Sequence[str], backend: str, tell: Progress) -> Path:
    """Make a repository of these networks with weights that are drawn; returns it."""
    torch.set_num_threads(1)
    for number, name in enumerate(models):
        tell(f"building {name}", number / len(models))
        make, shape, stage_bytes = NETWORKS[name]
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
    return folder
