"""Lengths of sentences and of their translations, from a file of one's own, or drawn like those of news."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """`profiled` are lengths of answers that a policy may know before; requests are drawn from the pairs `asked`.

    `told` says in words where they are from.
    """

    profiled: tuple[int, ...]
    asked: Lengths
    told: str

    @classmethod
    def of(cls, pairs: NDArray[np.int64], source: str) -> "Sentences":
        """Take the first half of `pairs` `(N, 2)` for the profile and the other to ask for."""
        cut = np.clip(pairs, 1, LONGEST)
        half = len(cut) // 2
        over = int((pairs > LONGEST).any(axis=1).sum())
        told = f"{len(cut):,} pairs {source}" + (f", {over:,} of them cut to {LONGEST} words" if over else "")
        return cls(tuple(sorted(cut[:half, 1].tolist())), [(int(a), int(b)) for a, b in cut[half:]], told)


def read_sentences(given: str | None) -> Sentences:
    """Return lengths from an array `(N, 2)` of words in and out, given as `FILE.npz:ARRAY`; None: drawn ones.

    The array may be left out where the file has only one of that shape. Raises `ConfigError` for a file without such
    an array, or with several of which none is named: one of them taken in silence gave figures of another language.
    """
    if given is None:
        return Sentences.of(_drawn(), "drawn like those of news")
    file, name = _file_and_array(given)
    try:
        with np.load(file) as arrays:
            found = {each: arrays[each] for each in arrays.files}
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} is no .npz file of lengths: {error}") from None
    pairs = {each: array for each, array in found.items() if _has_lengths(array)}
    if name is not None and name not in pairs:
        raise ConfigError(f"{file} has no array {name!r} (N, 2) of whole numbers of words: {_choice(file, pairs)}")
    if name is None and len(pairs) != 1:
        many = "several arrays" if pairs else "no array"
        raise ConfigError(f"{file} has {many} (N, 2) of lengths: {_choice(file, pairs)}")
    chosen = name or next(iter(pairs))
    return Sentences.of(pairs[chosen].astype(np.int64), f"of {chosen} in {file}")


def _file_and_array(given: str) -> tuple[str, str | None]:
    """Return the two parts of `FILE.npz:ARRAY`, and None for an array that is left out."""
    file, colon, name = given.rpartition(":")
    return (file, name) if colon and file.endswith(".npz") else (given, None)


def _has_lengths(array: NDArray[np.generic]) -> bool:
    whole = np.issubdtype(array.dtype, np.integer)
    return whole and array.ndim == 2 and array.shape[1] == 2 and len(array) > 1


def _choice(file: str, pairs: Mapping[str, object]) -> str:
    if not pairs:
        return "give words in and words out, a row for each pair"
    return f"name one, as in --lengths {file}:{min(pairs)}; it has {', '.join(sorted(pairs))}"


def _drawn() -> NDArray[np.int64]:
    random = np.random.default_rng(0)
    words = MEDIAN * np.exp(SPREAD * random.standard_normal(DRAWN))
    translated = words * np.exp(RATIO_SPREAD * random.standard_normal(DRAWN))
    return np.rint(np.stack([words, translated], axis=1)).astype(np.int64)


ONE: Sequence[tuple[int, int]] = ((1, 1),)  # of a network whose stages all run once
