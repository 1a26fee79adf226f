"""A sequence model whose right answers are known: it says its input backwards, and every word depends on all before."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

WORDS = 16  # the three marks included
LONGEST = 12


class Backwards(nn.Module):
    """Says word `n - 1 - p` of `n`, moved on by the sum of all that it has said; a mistake in its state shows at once.

    Part of the state is read only, part replaced, part written by position, part begins blank.
    """

    padding, start, end = 0, 1, 2
    longest_output = LONGEST + 1

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WORDS)
        nn.init.eye_(self.embedding.weight)
        self.blank = {"said": (2, LONGEST + 1), "steps": ()}
        self.eval()

    def encode(self, tokens: Tensor, length: Tensor) -> dict[str, Tensor]:
        """Return the words `(B, L, WORDS)` one-hot, their number, and their sum `(B,)`."""
        words = self.embedding(tokens)
        counts = torch.arange(tokens.shape[1]) < length[:, None]
        return {"length": length, "words": words, "sum": (tokens * counts).sum(dim=1).int()}

    def step(self, token: Tensor, position: Tensor, **state: Tensor) -> dict[str, Tensor]:
        """Return the logits of the next word."""
        words, length, said = state["words"], state["length"], state["said"]
        places = torch.arange(words.shape[1])
        here = (places == (length - 1 - position)[:, None]).to(words.dtype)
        numbers = torch.arange(WORDS, dtype=words.dtype)
        word = (words * here[:, :, None]).sum(dim=1) @ numbers
        before = (said[:, 0] * (torch.arange(said.shape[2]) < position[:, None])).sum(dim=1)
        moved = 3 + torch.remainder(word - 3 + before + state["sum"] + state["steps"], WORDS - 3)
        wanted = torch.where(position >= length, 2.0, moved)
        spoken = torch.stack((wanted, token.to(words.dtype)), dim=1)
        logits = -((numbers - wanted[:, None]) ** 2)
        said.zero_()
        position.add_(1)  # a step may write to what it is given
        return {"logits": logits, "said": spoken, "steps": state["steps"] + 1.0}


def backwards(words: Sequence[int]) -> list[int]:
    """Return what the model is to answer to these words."""
    said: list[int] = []
    for step, word in enumerate(reversed(words)):
        said.append(3 + (word - 3 + sum(said) + sum(words) + step) % (WORDS - 3))
    return [*said, Backwards.end]


def rows_of(sentences: Sequence[Sequence[int]], width: int = LONGEST) -> Tensor:
    """Return the sentences as padded rows `(N, width)`."""
    rows = torch.zeros(len(sentences), width, dtype=torch.int64)
    for place, sentence in enumerate(sentences):
        rows[place, : len(sentence)] = torch.tensor(list(sentence))
    return rows


def some_sentences(count: int, seed: int = 0) -> list[list[int]]:
    """Return sentences of 1 to LONGEST words."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, LONGEST + 1, (count,), generator=generator).tolist()
    return [torch.randint(3, WORDS, (length,), generator=generator).tolist() for length in lengths]
