"""Small real networks that several tests build and serve."""

import torch
from torch import Tensor, nn


class Chain(nn.Module):
    """Four convolutions one after another and a linear layer: cut points everywhere."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4))
        self.linear = nn.Linear(3 * 64, 5)
        self.eval()

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 3, 8, 8) float32` to `(B, 5) float32`."""
        for layer in self.layers:
            image = layer(image).tanh()
        out: Tensor = self.linear(image.flatten(1))
        return out


class Words(nn.Module):
    """An embedding of ten words and a sum: a word of 10 or more raises, as real models do on bad input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(10, 4)
        self.eval()

    def forward(self, word: Tensor) -> Tensor:
        """Map `(B, 3) int64` to `(B, 4) float32`."""
        out: Tensor = self.embedding(word).sum(dim=1)
        return out
