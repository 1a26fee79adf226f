"""Small modules of ours in the forms that people write: several inputs and outputs, odd types, states, branches."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from examples.architectures.catalogue import ROWS, Architecture, Rows

BRANCH = "express it with torch.where"


class Ranker(nn.Module):
    """A recommender: embedding bags of categories and a vector of numbers, two scores."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(50, 16, mode="mean")
        self.user = nn.Embedding(100, 16)
        self.deep = nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 2))

    def forward(self, user: Tensor, seen: Tensor, numbers: Tensor) -> dict[str, Tensor]:
        """Map `(B,) int64`, `(B, 6) int64` and `(B, 8) float32` to two scores."""
        scores = self.deep(torch.cat([self.user(user), self.bag(seen), numbers], 1)).sigmoid()
        return {"click": scores[:, 0], "buy": scores[:, 1]}


class SoundNet(nn.Module):
    """Convolutions over samples, as M5, with batch norms left in train mode by whoever made it."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for inside, outside in ((1, 16), (16, 32), (32, 64)):
            parts += [nn.Conv1d(inside, outside, 9, 4), nn.BatchNorm1d(outside), nn.ReLU(), nn.Dropout(0.3)]
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1, samples)` to `(B, 10)`."""
        return functional.log_softmax(self.head(self.body(x).mean(-1)), 1)


class Spectral(nn.Module):
    """Learned weights on the spectrum of a signal, as FNet and FNO do: complex numbers inside."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(33, 5)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 64)` to `(B, 5)`."""
        return self.head(torch.fft.rfft(x).abs())  # type: ignore[no-any-return]


class AutoEncoder(nn.Module):
    """Encodes an image to a few numbers and decodes it."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(2048, 32),
        )
        self.decode = nn.Sequential(
            nn.Linear(32, 2048), nn.Unflatten(1, (32, 8, 8)), nn.ConvTranspose2d(32, 16, 2, 2), nn.ReLU(),
            nn.ConvTranspose2d(16, 3, 2, 2), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return the image as decoded from 32 numbers."""
        return self.decode(self.encode(x))  # type: ignore[no-any-return]


class UNet(nn.Module):
    """Halves the image and doubles it again, with a connection at each level, so that it can hardly be cut."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 8), (8, 16), (16, 32)))
        self.up = nn.ModuleList(nn.Conv2d(i, o, 3, padding=1) for i, o in ((48, 16), (24, 8)))
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 3, H, W)` to `(B, 2, H, W)`."""
        seen = []
        for layer in self.down[:2]:
            x = layer(x).relu()
            seen.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.down[2](x).relu()
        for layer in self.up:
            x = functional.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
            x = layer(torch.cat([x, seen.pop()], 1)).relu()
        return self.last(x)  # type: ignore[no-any-return]


class Tagger(nn.Module):
    """Tags words by a bidirectional LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 16, 2, batch_first=True, bidirectional=True, dropout=0.1)
        self.head = nn.Linear(32, 7)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Map `(B, T) int64` to logits `(B, T, 7)` and tags `(B, T) int64`."""
        logits = self.head(self.lstm(self.words(words))[0])
        return logits, logits.argmax(-1)


class Running(nn.Module):
    """Counts its calls in a buffer that nothing reads."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 8)` to `(B, 3)`."""
        self.calls += 1
        return self.layer(x)  # type: ignore[no-any-return]


class Branching(nn.Module):
    """Branches on whether a mean is large, which cannot be exported."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Linear(8, 3)
        self.other = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 8)` to `(B, 3)`."""
        return self.one(x) if x.mean() > 0 else self.other(x)  # type: ignore[no-any-return]


class Padding(nn.Module):
    """Scores of the words that are no padding, which are chosen by a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 8)

    def forward(self, words: Tensor) -> Tensor:
        """Map `(B, T) int64` to a row for each word that is not 0."""
        return self.words(words[words != 0])  # type: ignore[no-any-return]


class Complex(nn.Module):
    """Returns a spectrum, in complex numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 64) float32` to `(B, 33) complex64`."""
        found: Tensor = torch.fft.rfft(x)
        return found


class Tied(nn.Module):
    """A masked language model whose head is its table of words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 100, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        """Map `(B, T) int64` to logits `(B, T, 100)`."""
        return self.head(self.body(self.words(words), src_key_padding_mask=words == 0))  # type: ignore[no-any-return]


def _mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


def _drawn(name: str, *shape: int) -> Callable[[], Rows]:
    return lambda: {name: torch.randn(ROWS, *shape)}


def _words() -> Rows:
    return {"words": torch.randint(0, 100, (ROWS, 12))}


def _visits() -> Rows:
    return {
        "user": torch.randint(0, 100, (ROWS,)),
        "seen": torch.randint(0, 50, (ROWS, 6)),
        "numbers": torch.randn(ROWS, 8),
    }


def _scripted() -> nn.Module:
    made: nn.Module = torch.jit.script(_mlp().eval())
    return made


def _traced() -> nn.Module:
    made: nn.Module = torch.jit.trace(_mlp().eval(), torch.randn(2, 16))  # type: ignore[no-untyped-call]
    return made


ARCHITECTURES = {
    "mlp": Architecture(_mlp, _drawn("input", 16)),
    "mlp_bf16": Architecture(
        lambda: _mlp().bfloat16(), lambda: {"input": torch.randn(ROWS, 16).bfloat16()}, refused="module.float()"
    ),
    "mlp_fp16": Architecture(lambda: _mlp().half(), lambda: {"input": torch.randn(ROWS, 16).half()}),
    "mlp_fp64": Architecture(lambda: _mlp().double(), lambda: {"input": torch.randn(ROWS, 16).double()}),
    "ranker": Architecture(Ranker, _visits),
    "sound": Architecture(SoundNet, _drawn("x", 1, 2000)),
    "spectral": Architecture(Spectral, _drawn("x", 64)),
    "autoencoder": Architecture(AutoEncoder, _drawn("x", 3, 32, 32)),
    "unet": Architecture(UNet, _drawn("x", 3, 32, 32)),
    "tagger": Architecture(Tagger, _words),
    "tied": Architecture(Tied, _words),
    "scripted": Architecture(_scripted, _drawn("input", 16), refused="TorchScript"),
    "traced": Architecture(_traced, _drawn("input", 16), refused="TorchScript"),
    "state": Architecture(Running, _drawn("x", 8), refused=""),
    "branch": Architecture(Branching, _drawn("x", 8), refused=BRANCH),
    "padding": Architecture(Padding, _words, refused="one row for each row of input"),
    "complex": Architecture(Complex, _drawn("x", 64), refused="complex64"),
}
