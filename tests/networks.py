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


class Tagger(nn.Module):
    """Two blocks of attention that obey a mask, over texts of any length: scores of each word, and of the text."""

    def __init__(self, width: int = 16, words: int = 50, blocks: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words = nn.Embedding(words, width)
        self.mixing = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(blocks))
        self.thinking = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.tag, self.topic = nn.Linear(width, 3), nn.Linear(width, 4)
        self.eval()

    def forward(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Map two `(B, L) int64` to `tags` `(B, L, 3)` and `topic` `(B, 4)`, both float32."""
        read = self.words(ids)
        counts = (mask != 0)[:, None, :]
        for mixing, thinking in zip(self.mixing, self.thinking, strict=True):
            query, key, value = mixing(read).chunk(3, dim=-1)
            read = read + nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=counts).tanh()
            read = read + thinking(read).tanh()
        weights = mask[:, :, None].float()
        return {"tags": self.tag(read), "topic": self.topic((read * weights).sum(1) / weights.sum(1).clamp(min=1.0))}


class Judge(nn.Module):
    """Reads all that a `Tagger` says of a text: whatever is filled up behind it changes the mean."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.verdict = nn.Linear(3, 2)
        self.eval()

    def forward(self, tags: Tensor) -> Tensor:
        """Map `(B, L, 3) float32` to `(B, 2) float32`."""
        out: Tensor = self.verdict(tags.mean(1))
        return out


class Enlarges(nn.Module):
    """Makes images of any size twice as large."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first, self.last = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.eval()

    def forward(self, image: Tensor) -> Tensor:
        """Map `(B, 2, H, W) float32` to `(B, 2, 2 * H, 2 * W) float32`."""
        return nn.functional.pixel_shuffle(self.last(self.first(image).tanh()), 2)
