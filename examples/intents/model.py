"""An encoder of texts of any length (BERT, Devlin et al. 2019) in the size of MiniLM, and a layer to intents."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional

WORDS, PLACES, WIDTH, INSIDE, HEADS, BLOCKS = 30_522, 512, 384, 1_536, 12, 6
CLASSES = 151  # of CLINC150, one of them for what is out of scope

# What the parts of a block are called in files of BERT.
PARTS = {
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "joined": "attention.output.dense",
    "first_norm": "attention.output.LayerNorm",
    "up": "intermediate.dense",
    "down": "output.dense",
    "last_norm": "output.LayerNorm",
}


class Block(nn.Module):
    """Attention and a layer for each word, both added to what they read and normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.joined = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.first_norm, self.last_norm = (nn.LayerNorm(WIDTH, eps=1e-12) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, INSIDE), nn.Linear(INSIDE, WIDTH)

    def forward(self, read: Tensor, kept: Tensor) -> Tensor:
        """Map `(B, L, 384) float32` to the same; only words that are `kept`, `(B, L) bool`, are looked at."""
        query, key, value = (
            layer(read).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, attn_mask=kept[:, None, None, :])
        read = self.first_norm(read + self.joined(seen.transpose(1, 2).flatten(2)))
        found: Tensor = self.last_norm(read + self.down(functional.gelu(self.up(read))))
        return found


class Intents(nn.Module):
    """What a text asks for, by the mean of what its words came to mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.answer = nn.Linear(WIDTH, CLASSES)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Map two `(B, L) int64` to scores `(B, 151) float32`."""
        kept = attention_mask != 0
        read = self.norm(self.words(input_ids) + self.places(torch.arange(input_ids.shape[1])))
        for block in self.blocks:
            read = block(read, kept)
        shares = kept[..., None].to(read.dtype)
        scores: Tensor = self.answer((read * shares).sum(1) / shares.sum(1).clamp(min=1.0))
        return scores


def intents() -> Intents:
    """Return the network, untrained."""
    return Intents()


def begin_with(network: Intents, weights: Path) -> None:
    """Fill all but the last layer with a file of BERT's names: `model.safetensors` of a MiniLM or another encoder."""
    there = load_file(weights)
    found = {
        "words.weight": there["embeddings.word_embeddings.weight"],
        "places.weight": there["embeddings.position_embeddings.weight"]
        + there["embeddings.token_type_embeddings.weight"][0],  # a text alone is of the first type
    }
    named = {"norm": "embeddings.LayerNorm"}
    named |= {f"blocks.{k}.{own}": f"encoder.layer.{k}.{name}" for k in range(BLOCKS) for own, name in PARTS.items()}
    for own, name in named.items():
        found |= {f"{own}.{kind}": there[f"{name}.{kind}"] for kind in ("weight", "bias")}
    lacking, unknown = network.load_state_dict(found, strict=False)
    assert not unknown
    assert set(lacking) == {"answer.weight", "answer.bias"}
