"""Small modules of every kind that a program must cope with, or must refuse."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class TwoInputs(nn.Module):
    """An image and a vector of the same batch, joined half-way."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.side = nn.Linear(4, 8)
        self.head = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 5))

    def forward(self, image: Tensor, vector: Tensor) -> Tensor:
        pooled = torch.relu(self.conv(image)).mean(dim=(2, 3))
        return self.head(pooled + self.side(vector))  # type: ignore[no-any-return]


class Branchy(nn.Module):
    """Two Inception-like blocks of four branches each, with batch norms that have seen data."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.blocks = nn.ModuleList([Inception(8), Inception(16)])
        self.head = nn.Linear(16, 4)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.running_mean, -1, 1)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))  # type: ignore[no-any-return]


class Inception(nn.Module):
    """1x1, 3x3 with batch norm, two 3x3, and pooling; 16 channels out."""

    def __init__(self, inside: int) -> None:
        super().__init__()
        self.one = nn.Conv2d(inside, 4, 1)
        self.three = nn.Sequential(nn.Conv2d(inside, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4))
        self.five = nn.Sequential(nn.Conv2d(inside, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1), nn.Conv2d(inside, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1).relu()


class Uncuttable(nn.Module):
    """Every layer is added to the input, which therefore stays live to the end."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        out = x
        for layer in self.layers:
            out = torch.tanh(layer(out)) + x
        return out


class Translator(nn.Module):
    """Words to vectors by an LSTM whose zero state is made for the batch, then attention and a layer norm."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.first = nn.Parameter(torch.randn(1, 1, 8))

    def forward(self, words: Tensor) -> Tensor:
        x = torch.cat([self.first.expand(words.shape[0], -1, -1), self.words(words)], 1)
        x, _ = self.lstm(x)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.norm(x)  # type: ignore[no-any-return]


class TwoOutputs(nn.Module):
    """Gives its features beside its scores, in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh())
        self.head = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = self.body(x)
        return {"features": features, "scores": self.head(features)}


class DependsOnValues(nn.Module):
    """Takes another way for large inputs."""

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.sum() > 0 else x


class Counts(nn.Module):
    """Keeps a state between calls."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x + self.calls


class Reader(nn.Module):
    """A Transformer that is told which words count: every block needs the mask beside the activation."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 16)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.head = nn.Linear(16, 4)

    def forward(self, words: Tensor, counts: Tensor) -> Tensor:
        left_out = counts == 0
        x = self.words(words)
        for block in self.blocks:
            x = block(x, src_key_padding_mask=left_out)
        return self.head(x[:, 0])  # type: ignore[no-any-return]


class Cached(nn.Module):
    """Gives what it keeps for the next call beside its scores, as language models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> dict[str, object]:
        return {"logits": self.layer(x), "past": {"layer": x}, "hidden": x * 2}


WORDS, WIDTH = 6, 16


class Norm(nn.Module):
    """A norm by the root mean square in parts, as libraries of language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Return x, normalised."""
        mean = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean + 1e-6))


class Block(nn.Module):
    """Attention of one head to those words before that count, and two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(Norm() for _ in range(2))
        self.three = nn.Linear(WIDTH, 3 * WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        """Return x after the block."""
        q, k, v = (part.unsqueeze(1) for part in self.three(self.norms[0](x)).chunk(3, -1))
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=allowed).squeeze(1)
        return x + self.narrow(torch.relu(self.wide(self.norms[1](x))))  # type: ignore[no-any-return]


class Decoder(nn.Module):
    """A classifier on a decoder: it takes the scores at the last word that is not padding (0)."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, words: Tensor) -> Tensor:
        """Return scores."""
        before = torch.tril(torch.ones(WORDS, WORDS, dtype=torch.bool))
        x = self.words(words)
        for block in self.blocks:
            x = block(x, before & (words != 0)[:, None, None, :])
        last = (torch.arange(WORDS) * (words != 0).int()).argmax(-1)
        return self.head(x)[torch.arange(words.shape[0]), last]  # type: ignore[no-any-return]


class Recurrent(nn.Module):
    """A recurrent network that gives all that torch's does, rows of the batch first."""

    def __init__(self, kind: Callable[..., nn.RNNBase], **settings: int | bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.network = kind(8, 6, **settings)

    def forward(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs of all steps and the last states."""
        first = self.network.batch_first
        outputs, states = self.network(rows if first else rows.transpose(0, 1))
        states = states if isinstance(states, tuple) else (states,)
        return (outputs if first else outputs.transpose(0, 1), *(state.transpose(0, 1) for state in states))


class Several(nn.Module):
    """Modules side by side, each with outputs of its own: exported together in a tenth of the time."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(modules)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        found = [part(x) for part in self.parts]
        outputs = [output for one in found for output in (one if isinstance(one, tuple) else (one,))]
        return {f"part_{number}": output for number, output in enumerate(outputs)}


class Products(nn.Module):
    """Attention of two heads, a matrix for all rows before it and a vector for each row behind."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.turn = nn.Parameter(torch.randn(8, 8))

    def forward(self, rows: Tensor) -> Tensor:
        """Return `(B, 7)` for rows `(B, 7, 8)`."""
        heads = (rows @ self.turn).view(-1, 7, 2, 4).transpose(1, 2)
        weights = torch.softmax(heads @ heads.transpose(2, 3), dim=3)
        found = (weights @ heads).transpose(1, 2).flatten(2)
        told: Tensor = found @ rows[:, 0, :, None]
        return told[:, :, 0]


def texts(rows: int) -> Tensor:
    """Return texts of words other than 0, and behind them 0."""
    counts = torch.arange(WORDS) < torch.randint(1, WORDS + 1, (rows, 1))
    return torch.randint(1, 20, (rows, WORDS)) * counts


def masked(rows: int) -> dict[str, Tensor]:
    """Return what a `Reader` takes."""
    counts = torch.arange(WORDS) < torch.randint(1, WORDS + 1, (rows, 1))
    return {"words": torch.randint(0, 20, (rows, WORDS)), "counts": counts.long()}
