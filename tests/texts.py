"""A small real classifier of texts of any length as a model directory with learned caches, and its texts."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.sizes import Dim
from latebind.learned.build import build_caches
from latebind.learned.report import CacheReport
from latebind.learned.samples import Samples
from latebind.program.build import build_program
from latebind.repository.directory import ModelDirectory

WORDS, CLASSES, WIDTH, LONGEST = 40, 4, 32, 24
FIT, CALIBRATE, UNSEEN = 800, 700, 500
FIDELITY = 0.98


class Texts(nn.Module):
    """A layer of attention that obeys a mask, and wide layers for each word that hand on what they read.

    So a lookup costs far less than what it saves, the more so in long texts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.mixing = nn.Linear(WIDTH, 3 * WIDTH)
        self.up = nn.ModuleList(nn.Linear(WIDTH, 2_048) for _ in range(3))
        self.down = nn.ModuleList(nn.Linear(2_048, WIDTH) for _ in range(3))
        for layer in self.down:
            assert isinstance(layer, nn.Linear)
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)
        self.topic = nn.Linear(WIDTH, CLASSES)

    def known(self, ids: Tensor, kept: Tensor) -> Tensor:
        """The part that learns, `(B, L)` to `(B, L, 32)`."""
        read = self.words(ids)
        query, key, value = self.mixing(read).chunk(3, dim=-1)
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=kept[:, None, :])
        found: Tensor = read + seen
        return found

    def head(self, read: Tensor, kept: Tensor) -> Tensor:
        """Logits `(B, 4)`, by the mean of the words that are kept."""
        shares = kept[..., None].to(read.dtype)
        logits: Tensor = self.topic((read * shares).sum(1) / shares.sum(1).clamp(min=1.0))
        return logits

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Map two `(B, L) int64` to `(B, 4) float32`."""
        kept = mask != 0
        read = self.known(ids, kept)
        for up, down in zip(self.up, self.down, strict=True):
            read = read + down(functional.relu(up(read)))
        return self.head(read, kept)


@cache
def texts() -> tuple[list[Tensor], Tensor]:
    """Return texts `(L,) int64` of 3 to 24 words, and what most words of each are about."""
    generator = torch.Generator().manual_seed(0)
    found, labels = list[Tensor](), list[int]()
    while len(found) < FIT + CALIBRATE + UNSEEN:
        length = int(torch.randint(3, LONGEST + 1, (), generator=generator))
        topic = int(torch.randint(CLASSES, (), generator=generator))
        about = torch.rand(length, generator=generator) < 0.4
        words = 1 + torch.randint(WORDS - 1, (length,), generator=generator)
        words[about] = 1 + topic + CLASSES * torch.randint(9, (int(about.sum()),), generator=generator)
        found.append(words)
        labels.append(topic)
    return found, torch.tensor(labels)


def samples(first: int, end: int) -> Samples:
    rows, labels = texts()
    some = rows[first:end]
    return Samples({"ids": some, "mask": [torch.ones_like(row) for row in some]}, labels[first:end])


def unseen() -> Samples:
    return samples(FIT + CALIBRATE, FIT + CALIBRATE + UNSEEN)


def filled_up(rows: list[Tensor], length: int) -> tuple[Tensor, Tensor]:
    """Return texts as a client sends them in one call: filled up to this length, with a mask."""
    ids, mask = torch.zeros(len(rows), length, dtype=torch.int64), torch.zeros(len(rows), length, dtype=torch.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)], mask[place, : len(row)] = row, 1
    return ids, mask


def trained() -> Texts:
    rows, labels = texts()
    torch.manual_seed(0)
    module = Texts()
    optimizer = torch.optim.Adam(
        [*module.words.parameters(), *module.mixing.parameters(), *module.topic.parameters()], 1e-2
    )
    for _ in range(5):
        for part in torch.split(torch.randperm(FIT), 50):
            ids, mask = filled_up([rows[row] for row in part.tolist()], LONGEST)
            kept = mask != 0
            optimizer.zero_grad()
            loss = functional.cross_entropy(module.head(module.known(ids, kept), kept), labels[part])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return module.eval()


@dataclass(frozen=True)
class BuiltTexts:
    """The report on a model with learned caches."""

    report: CacheReport

    @property
    def directory(self) -> ModelDirectory:
        return self.report.directory


def build_texts(
    folder: Path,
    *,
    backend: str = "eager",
    tolerance: float | None = None,
    fidelity: float = FIDELITY,
    busy: float = 0.0,
) -> BuiltTexts:
    """Train, build and calibrate in `folder`; takes seconds.

    What the wide layers add to a word has a spread that goes with `busy`: none, unless arithmetic is to matter there.
    """
    torch.set_num_threads(1)
    module, generator = trained(), torch.Generator().manual_seed(1)
    for layer in module.down:
        assert isinstance(layer, nn.Linear)
        layer.weight.data += busy * torch.randn(layer.weight.shape, generator=generator)
    directory = build_program(
        module,
        dict(zip(("ids", "mask"), filled_up(texts()[0][:4], LONGEST), strict=True)),
        directory=folder / "1",
        name="texts",
        backends=[backend],
        tolerance=tolerance,
        min_stage_seconds=0.0,
        max_overhead=None,
        max_batch=8,
        dims=(Dim("L", 1, LONGEST),),
        sizes={"ids": ["L"], "mask": ["L"]},
    ).directory
    report = build_caches(
        directory,
        samples(0, FIT),
        samples(FIT, FIT + CALIBRATE),
        fidelity=fidelity,
        confidence=0.9,
        presentations=12_000,
    )
    return BuiltTexts(report)
