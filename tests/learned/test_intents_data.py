"""Texts of intents from files: tokens of their own lengths, labels by number, and halves that share no text."""

import gzip
from pathlib import Path

import pytest
import torch

from examples.intents.data import read, samples, together, unseen
from examples.intents.model import CLASSES, intents
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = {"[UNK]": 0, "what": 1, "is": 2, "this": 3} | {f"w{k}": 4 + k for k in range(CLASSES)}
    coder = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    coder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    coder.save(str(tmp_path / "tokenizer.json"))
    for part in ("train", "val", "test"):
        lines = [f"intent{k:03d}\t{'what is ' * (k % 3)}w{k}" for k in range(CLASSES)]
        with gzip.open(tmp_path / f"clinc150_{part}.tsv.gz", "wt", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")
    return tmp_path


def rows_of(some: Samples) -> tuple[list[list[int]], list[int]]:
    assert isinstance(some.inputs, dict)
    assert some.labels is not None
    assert all(bool((mask == 1).all()) for mask in some.inputs["attention_mask"])
    return [row.tolist() for row in some.inputs["input_ids"]], some.labels.tolist()


def test_texts_have_their_own_lengths_and_the_numbers_of_their_labels(folder: Path) -> None:
    rows, labels = rows_of(read(folder, folder / "tokenizer.json", ("val",)))
    assert labels == list(range(CLASSES))
    assert rows[:3] == [[4], [1, 2, 5], [1, 2, 1, 2, 6]]


def test_what_fits_comes_in_an_order_that_is_drawn_and_what_is_unseen_calibrates_nothing(folder: Path) -> None:
    given = {"data": str(folder), "tokenizer": str(folder / "tokenizer.json")}
    (fit, calibrate), new = samples(**given), unseen(**given)
    rows, labels = rows_of(fit)
    assert sorted(labels) == list(range(CLASSES)) != labels
    assert all(row[-1] == 4 + label for row, label in zip(rows, labels, strict=True))
    both = [label for part in (calibrate, new) for label in rows_of(part)[1]]
    assert sorted(both) == sorted([*range(CLASSES)] * 2)  # val and test
    assert rows_of(unseen(**given)) == rows_of(new)


def test_a_folder_of_other_texts_is_refused(folder: Path) -> None:
    with gzip.open(folder / "clinc150_train.tsv.gz", "wt", encoding="utf-8") as file:
        file.write("one\ttext\n")
    with pytest.raises(ConfigError, match="has 1 intents, and the network 151"):
        read(folder, folder / "tokenizer.json", ("val",))


def test_a_tokenizer_that_is_not_there_is_told(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json is no file"):
        samples(data=str(folder), tokenizer="none.json")


@torch.inference_mode()
def test_a_text_beside_longer_ones_is_answered_as_alone() -> None:
    torch.manual_seed(0)
    network = intents().eval()
    rows = [torch.randint(1, 1_000, (length,)) for length in (3, 11, 7)]
    both = network(**together(rows))
    for place, row in enumerate(rows):
        torch.testing.assert_close(network(**together([row]))[0], both[place], rtol=1e-4, atol=1e-5)
