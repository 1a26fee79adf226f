"""Pairs of sentences as word numbers. Two files of lines, plain or gzip, the same line in both being one pair.

Made for Multi30k (Elliott et al. 2016), English to German: `multi30k.train.en.gz`, `multi30k.train.de.gz` and
`multi30k.test_2016_flickr.*` in one folder. Any other pair of languages does as well.
"""

import gzip
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from examples.translation.model import (
    END,
    LONGEST_INPUT,
    LONGEST_OUTPUT,
    PADDING,
    START,
    UNKNOWN,
    WIDTH,
    WORDS_IN,
    WORDS_OUT,
)
from latebind.domain.errors import ConfigError
from latebind.learned.samples import Samples

WORD = re.compile(r"\w+|[^\w\s]")
SPECIAL = ("", "<", ">", "?unknown")
ENDINGS = ("", ".gz")


class Vocabulary:
    """The most frequent words of some sentences, and their numbers."""

    def __init__(self, sentences: Iterable[str], words: int) -> None:
        counts = Counter(word for sentence in sentences for word in split(sentence))
        self.words = [*SPECIAL, *(word for word, _ in counts.most_common(words - len(SPECIAL)))]
        self._numbers = {word: number for number, word in enumerate(self.words)}

    def numbers(self, sentence: str) -> list[int]:
        """Return the numbers of the words of a sentence."""
        return [self._numbers.get(word, UNKNOWN) for word in split(sentence)]

    def text(self, numbers: Iterable[int]) -> str:
        """Return the words of an answer up to its end."""
        found = []
        for number in numbers:
            if number in (END, PADDING):
                break
            found.append(self.words[number])
        return " ".join(found)


@dataclass(frozen=True, slots=True)
class Pairs:
    """Word numbers of inputs `(N, LONGEST_INPUT)` and of outputs `(N, LONGEST_OUTPUT)`, padded; lengths `(N,)`."""

    inputs: Tensor
    outputs: Tensor
    lengths: Tensor


def split(sentence: str) -> list[str]:
    """Return words and marks in lower case."""
    return WORD.findall(sentence.lower())


def read_lines(folder: Path, name: str) -> list[str]:
    """Return the lines of a file, packed or not. Raises `ConfigError`."""
    for ending in ENDINGS:
        path = folder / f"{name}{ending}"
        if path.is_file():
            data = path.read_bytes()
            return (gzip.decompress(data) if ending else data).decode("utf-8").splitlines()
    raise ConfigError(f"{folder / name} is not there, packed (.gz) or not: name the folder that has the sentences")


def vocabularies(folder: Path, *, source: str = "en", target: str = "de") -> tuple[Vocabulary, Vocabulary]:
    """Return the words that are read and those that are written, from the sentences to learn from."""
    read, written = (read_lines(folder, f"multi30k.train.{language}") for language in (source, target))
    return Vocabulary(read, WORDS_IN), Vocabulary(written, WORDS_OUT)


def pairs(folder: Path, name: str, *, source: str = "en", target: str = "de") -> Pairs:
    """Return the pairs of `name.source` and `name.target`, those without words left out."""
    words_in, words_out = vocabularies(folder, source=source, target=target)
    read, written = (read_lines(folder, f"{name}.{language}") for language in (source, target))
    rows = [
        (words_in.numbers(line)[:LONGEST_INPUT], [*words_out.numbers(other)[: LONGEST_OUTPUT - 1], END])
        for line, other in zip(read, written, strict=True)
        if split(line) and split(other)
    ]
    return Pairs(
        padded([row for row, _ in rows], LONGEST_INPUT),
        padded([row for _, row in rows], LONGEST_OUTPUT),
        torch.tensor([len(row) for row, _ in rows]),
    )


def padded(rows: Sequence[Sequence[int]], width: int) -> Tensor:
    """Return `(N, width)` with the rows at its left."""
    found = torch.full((len(rows), width), PADDING)
    for place, row in enumerate(rows):
        found[place, : len(row)] = torch.tensor(row)
    return found


def shifted(outputs: Tensor) -> Tensor:
    """Return what a decoder has before each word of `outputs` `(B, T)`: the start, then the words but the last."""
    return torch.cat((torch.full_like(outputs[:, :1], START), outputs[:, :-1]), dim=1)


def unseen(data: str, source: str = "en", target: str = "de") -> Samples:
    """Return sentences to translate that no model here has learned from: what benchmarks send."""
    found = pairs(Path(data), "multi30k.test_2016_flickr", source=source, target=target)
    return Samples({"tokens": found.inputs})


def states(rows: str = "256") -> Samples:
    """Return made-up states of requests in the middle of a sentence, for `model.lstm_step`."""
    made, count = torch.Generator().manual_seed(0), int(rows)
    names = "hidden_1", "cell_1", "hidden_2", "cell_2", "context"
    return Samples(
        {
            "token": torch.randint(UNKNOWN, WORDS_OUT, (count,), generator=made),
            "length": torch.randint(5, 20, (count,), generator=made),
            "memory": torch.randn(count, LONGEST_INPUT, WIDTH, generator=made),
            **{name: torch.randn(count, WIDTH, generator=made) for name in names},
        }
    )


def samples(data: str, source: str = "en", target: str = "de") -> Samples:
    """Return the first thousand sentences of the training data: what `build` measures lengths of answers on."""
    found = pairs(Path(data), "multi30k.train", source=source, target=target)
    return Samples({"tokens": found.inputs[:1000]})
