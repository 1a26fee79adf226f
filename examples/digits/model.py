"""Handwritten digits of scikit-learn (8x8 pixels, real, inside the package) and a small network that reads them."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10


class DigitsNet(nn.Module):
    """A stem and residual blocks of two 3x3 convolutions: deep enough that most digits need not see its end."""

    def __init__(self, channels: int = 64, blocks: int = 12) -> None:
        super().__init__()
        self.stem = _convolution(1, channels)
        self.blocks = nn.ModuleList(
            nn.Sequential(_convolution(channels, channels), nn.ReLU(), _convolution(channels, channels))
            for _ in range(blocks)
        )
        self.head = nn.Linear(channels * 16, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """Map images `(B, 1, 8, 8) float32` in 0 to 1 to logits `(B, 10) float32`."""
        x = functional.relu(self.stem(image))
        for block in self.blocks:
            x = functional.relu(x + block(x))
        logits: Tensor = self.head(functional.avg_pool2d(x, 2).flatten(1))
        return logits


def _convolution(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside))


def load_images() -> tuple[Tensor, Tensor]:
    """Return all 1,797 images `(N, 1, 8, 8) float32` and their labels `(N,) int64`."""
    digits = load_digits()
    images = torch.from_numpy((digits.images / 16).astype(np.float32)).unsqueeze(1)
    return images, torch.from_numpy(digits.target.astype(np.int64))


def shifted(images: Tensor, generator: torch.Generator) -> Tensor:
    """Return images of which half are moved by up to one pixel each way, all with a little noise."""
    padded = functional.pad(images, (1, 1, 1, 1))
    stay = torch.rand(len(images), 1, generator=generator) < 0.5
    moves = torch.where(stay, 1, torch.randint(0, 3, (len(images), 2), generator=generator)).tolist()
    moved = torch.stack([padded[i, :, y : y + 8, x : x + 8] for i, (y, x) in enumerate(moves)])
    return moved + 0.05 * torch.randn(moved.shape, generator=generator)


def train(images: Tensor, labels: Tensor, *, epochs: int = 10, seed: int = 0) -> DigitsNet:
    """Train a network on images `(N, 1, 8, 8)` and labels `(N,)`; seconds on one core."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    net = DigitsNet()
    steps = epochs * -(-len(images) // 64)
    optimizer = torch.optim.AdamW(net.parameters(), weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=steps)
    for _ in range(epochs):
        order = torch.randperm(len(images), generator=generator)
        moved = shifted(images, generator)
        for batch in torch.split(order, 64):
            loss = functional.cross_entropy(net(moved[batch]), labels[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
    return net.eval()
