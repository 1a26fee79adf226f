"""The newcomer's modules that README names, as small as they can be: a copy lies beside the page that is walked."""

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """A convolution that is added to what it reads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, width, H, W) float32` to the same."""
        return torch.relu(x + self.inner(x))


def resnet() -> nn.Module:
    """Map images `(B, 3, 224, 224) float32` to the scores `(B, 10)` of ten classes."""
    stem = nn.Conv2d(3, 16, 7, stride=8), nn.ReLU()
    return nn.Sequential(
        *stem, *(Residual(16) for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


class Guard(nn.Module):
    """The mean of embedded tokens, of those that the mask counts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.verdict = nn.Embedding(1000, 32), nn.Linear(32, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Map two `(B, L) int64` to `(B, 2) float32`."""
        counts = attention_mask[:, :, None].float()
        read = torch.tanh(self.words(input_ids)) * counts
        verdict: Tensor = self.verdict(read.sum(1) / counts.sum(1).clamp(min=1.0))
        return verdict


def guard() -> nn.Module:
    """Say of texts of any length whether they are harmless."""
    return Guard()


def unet() -> nn.Module:
    """Map images `(B, 3, H, W) float32` to `(B, 1, H, W)`: down by 4, and up again."""
    down = nn.Conv2d(3, 8, 4, stride=4), nn.ReLU()
    return nn.Sequential(*down, nn.Conv2d(8, 16, 3, padding=1), nn.PixelShuffle(4))


class Translator(nn.Module):
    """Reads the mean of its words, and writes with an LSTM."""

    start, end, padding = 1, 2, 0
    longest_output = 20
    blank = {"cell": (32,)}  # noqa: RUF012  (as the documents write it)

    def __init__(self) -> None:
        super().__init__()
        self.words, self.reader, self.answer = nn.Embedding(50, 32), nn.Linear(32, 32), nn.Linear(32, 50)
        self.writer = nn.LSTMCell(32, 32)

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        """Return the state `(B, 32) float32` of rows of words `(B, L) int64`."""
        counts = torch.arange(tokens.shape[1]) < length[:, None]
        read = (self.reader(self.words(tokens)) * counts[:, :, None]).sum(1)
        return {"hidden": torch.tanh(read / length[:, None])}

    def step(self, token: Tensor, position: Tensor, hidden: Tensor, cell: Tensor) -> dict[str, Tensor]:
        """Return the logits `(B, 50) float32` of the next word."""
        hidden, cell = self.writer(self.words(token), (hidden, cell))
        return {"logits": self.answer(hidden), "hidden": hidden, "cell": cell}


def translator() -> nn.Module:
    """Answer to rows of up to 40 words."""
    return Translator()
