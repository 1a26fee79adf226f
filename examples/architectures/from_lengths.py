"""Networks whose rows differ in size: texts, sounds, images. Most are those of the other sources, unchanged."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from examples.architectures.catalogue import ROWS, Architecture, words
from examples.architectures.from_plain import ARCHITECTURES as PLAIN
from examples.architectures.from_plain import SoundNet
from examples.architectures.from_transformers import ARCHITECTURES as TRANSFORMERS
from examples.architectures.from_transformers import of
from latebind.domain.sizes import Dim

LENGTH, SAMPLES = Dim("L", 1, 128), Dim("T", 800, 8000)
HEIGHT, WIDTH = Dim("H", 16, 128, 8), Dim("W", 16, 128, 8)
TEXTS = ("bert", "bert_tokens", "distilbert", "roberta", "modernbert", "deberta_v2", "mpnet", "electra", "gpt2")


class SuperResolution(nn.Module):
    """Three times as many points in each direction, as ESPCN."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 32, 5, padding=2), nn.Tanh(), nn.Conv2d(32, 16, 3, padding=1), nn.Tanh(),
            nn.Conv2d(16, 9, 3, padding=1), nn.PixelShuffle(3),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Map `(B, 1, H, W)` to `(B, 1, 3 * H, 3 * W)`."""
        return self.body(x)  # type: ignore[no-any-return]


def _pairs() -> dict[str, Tensor]:
    rows = words()()
    return {**rows, "token_type_ids": (torch.arange(rows["input_ids"].shape[1]) > 7).long().expand(ROWS, -1)}


def _texts(fixed: Architecture) -> Architecture:
    return replace(fixed, dims=(LENGTH,), sizes=dict.fromkeys(fixed.rows(), ("L",)))


_minilm: dict[str, Any] = {
    "hidden_size": 384,
    "num_hidden_layers": 6,
    "num_attention_heads": 12,
    "intermediate_size": 1536,
}

ARCHITECTURES = {
    **{name: _texts(TRANSFORMERS[name]) for name in TEXTS},
    "minilm": _texts(of("BertModel", "BertConfig", words(known=30522), vocab_size=30522, **_minilm)),
    "bert_base": _texts(of("BertModel", "BertConfig", words(known=30522))),
    "cross_encoder": _texts(
        of("BertForSequenceClassification", "BertConfig", _pairs, vocab_size=30522, num_labels=1, **_minilm)
    ),
    "tagger": _texts(PLAIN["tagger"]),
    "wav2vec2": replace(TRANSFORMERS["wav2vec2"], dims=(SAMPLES,), sizes={"input_values": ("T",)}),
    "sound_net": Architecture(
        SoundNet, lambda: {"x": torch.randn(ROWS, 1, 4000)}, dims=(SAMPLES,), sizes={"x": (1, "T")}
    ),
    "unet": replace(PLAIN["unet"], dims=(HEIGHT, WIDTH), sizes={"x": (3, "H", "W")}),
    "super_resolution": Architecture(
        SuperResolution,
        lambda: {"x": torch.randn(ROWS, 1, 24, 32)},
        dims=(HEIGHT, WIDTH),
        sizes={"x": (1, "H", "W")},
    ),
}
