"""Requests of CLINC150 (Larson et al. 2019) as tokens, each text of its own length, and samples for learned caches."""

import gzip
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from examples.intents.model import CLASSES
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples

LONGEST = 128  # tokens of a text; what is behind them is cut off


def samples(*, data: str, tokenizer: str, seed: str = "0") -> tuple[Samples, Samples]:
    """Return what the network learned from, to fit learned caches, and a half of all other texts, to calibrate.

    `data` is the folder of `clinc150_train.tsv.gz`, `_val` and `_test`, with a label, a tab and a text in each line;
    `tokenizer` a `tokenizer.json`. The files have one intent after another, and of what fits caches the last part is
    kept from predictors, which would not know the last intents: so texts come in an order that is drawn.
    """
    learned = read(Path(data), Path(tokenizer), ("train",))
    order = torch.randperm(len(learned), generator=torch.Generator().manual_seed(int(seed)))
    return learned.take(order), _half(data, tokenizer, seed, 0)


def unseen(*, data: str, tokenizer: str, seed: str = "0") -> Samples:
    """Return the other half of what the network has not learned from: nothing is learned from or calibrated on it."""
    return _half(data, tokenizer, seed, 1)


def read(folder: Path, tokenizer: Path, parts: Sequence[str]) -> Samples:
    """Return the texts of these parts, in their order, with the number of each label among those of `train`."""
    names = sorted({label for label, _ in _lines(folder, "train")})
    if len(names) != CLASSES:
        raise ConfigError(f"{folder} has {len(names)} intents, and the network {CLASSES}: give CLINC150 with `oos`")
    numbers = {name: number for number, name in enumerate(names)}
    lines = [line for part in parts for line in _lines(folder, part)]
    rows = [torch.tensor(ids) for ids in _ids(tokenizer, [text for _, text in lines])]
    masks = [torch.ones_like(row) for row in rows]
    labels = torch.tensor([numbers[label] for label, _ in lines])
    return Samples({"input_ids": rows, "attention_mask": masks}, labels)


def together(rows: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return texts `(L,)` of different lengths as one batch, filled up with 0."""
    masks = [torch.ones_like(row) for row in rows]
    both = {"input_ids": rows, "attention_mask": masks}
    return {name: torch.nn.utils.rnn.pad_sequence(list(part), batch_first=True) for name, part in both.items()}


def _half(data: str, tokenizer: str, seed: str, number: int) -> Samples:
    every = read(Path(data), Path(tokenizer), ("val", "test"))
    return every.halves(int(seed))[number]


def _lines(folder: Path, part: str) -> list[tuple[str, str]]:
    path = folder / f"clinc150_{part}.tsv.gz"
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = [line.rstrip("\n").partition("\t") for line in file]
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}; the README says what it must hold") from error
    return [(label, text) for label, _, text in found]


def _ids(tokenizer: Path, texts: list[str]) -> list[list[int]]:
    from tokenizers import Tokenizer  # noqa: PLC0415  # it comes with transformers, which little else here needs

    if not tokenizer.is_file():
        raise ConfigError(f"{tokenizer} is no file: give the tokenizer.json of the weights")
    coder: Any = Tokenizer.from_file(str(tokenizer))
    coder.no_padding()
    coder.enable_truncation(LONGEST)
    return [each.ids for each in coder.encode_batch(texts)]
