"""Lengths of sentences and of their translations, from a file of one's own, or drawn like those of news."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from latebind.domain.errors import ConfigError
from latebind.simulation.workloads import Lengths

LONGEST = 50  # words; longer ones are cut
DRAWN = 10_000
MEDIAN, SPREAD = 20.0, 0.55  # of words of English news, lognormal
RATIO_SPREAD = 0.2  # of words of a translation over those of its sentence


@dataclass(frozen=True, slots=True)
class Sentences:
    """`profiled` are lengths of answers that a policy may know before; requests are drawn from the pairs `asked`."""

    profiled: tuple[int, ...]
    asked: Lengths

    @classmethod
    def of(cls, pairs: NDArray[np.int64]) -> "Sentences":
        """Take the first half of `pairs` `(N, 2)` for the profile and the other to ask for."""
        cut = np.clip(pairs, 1, LONGEST)
        half = len(cut) // 2
        return cls(tuple(sorted(cut[:half, 1].tolist())), [(int(a), int(b)) for a, b in cut[half:]])


def read_sentences(file: Path | None) -> Sentences:
    """Return lengths from an .npz file, an array `(N, 2)` of words in and out; without a file drawn ones.

    Raises `ConfigError` for a file that holds no such array.
    """
    if file is None:
        return Sentences.of(_drawn())
    try:
        with np.load(file) as arrays:
            found = [arrays[name] for name in arrays.files]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is no .npz file of lengths: {error}") from None
    pairs = next((array for array in found if array.ndim == 2 and array.shape[1] == 2 and len(array) > 1), None)
    if pairs is None:
        raise ConfigError(f"{file} has no array (N, 2) of lengths: give words in and words out, a row for each pair")
    return Sentences.of(pairs.astype(np.int64))


def _drawn() -> NDArray[np.int64]:
    random = np.random.default_rng(0)
    words = MEDIAN * np.exp(SPREAD * random.standard_normal(DRAWN))
    translated = words * np.exp(RATIO_SPREAD * random.standard_normal(DRAWN))
    return np.rint(np.stack([words, translated], axis=1)).astype(np.int64)


ONE: Sequence[tuple[int, int]] = ((1, 1),)  # of a network whose stages all run once
