"""A preprocessor that is real but small: a text becomes a number for each of its words, and two texts one row."""

import threading
from collections.abc import Callable
from zlib import crc32

import numpy as np

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import Media, RawInput
from latebind.preprocessing.preprocessor import USUAL, Given, Prepared, Raw, Reading, columns

BETWEEN = 1  # the number between two texts
LONGEST = 12
RAW = (RawInput("text", Media.TEXT), RawInput("text_pair", Media.TEXT, optional=True))


def numbers(text: str) -> list[int]:
    return [2 + crc32(word.encode()) % 98 for word in text.split()]


class Words:
    """Makes `ids` and `mask`, at most `LONGEST` of each. Before each call `meanwhile` happens, in its thread.

    `threads` are those that it was called by.
    """

    raw = RAW
    makes = frozenset({"ids", "mask"})

    def __init__(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.meanwhile = meanwhile
        self.threads: list[str] = []

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        self.threads.append(threading.current_thread().name)
        self.meanwhile()
        found = columns(RAW, given)
        seconds = found.get("text_pair", [None] * len(found["text"]))
        return [
            self._row(place, str(first), second, how)
            for place, (first, second) in enumerate(zip(found["text"], seconds, strict=True))
        ]

    def _row(self, place: int, first: str, second: Raw | None, how: Reading) -> Prepared:
        ids = [*numbers(how.prompt or ""), *numbers(first)]
        if second is not None:
            ids += [BETWEEN, *numbers(str(second))]
        if not ids:
            raise InvalidRequest(f"element {place} of 'text' has no words")
        if len(ids) > LONGEST and not how.truncate:
            raise InvalidRequest(f"element {place} of 'text' has {len(ids)} words, and the model takes {LONGEST}")
        kept = np.array(ids[-LONGEST:] if how.kept == "end" else ids[:LONGEST], np.int64)
        return Prepared({"ids": kept, "mask": np.ones_like(kept)}, len(kept), len(ids) - len(kept))


class Pixels:
    """Makes four `pixels` of a picture, which has a byte for each."""

    raw = (RawInput("image", Media.PICTURE),)
    makes = frozenset({"pixels"})

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        return [self._row(place, raw) for place, raw in enumerate(columns(self.raw, given)["image"])]

    def _row(self, place: int, raw: Raw) -> Prepared:
        if len(raw) != 4 or isinstance(raw, str):
            raise InvalidRequest(f"element {place} of 'image' is no picture")
        return Prepared({"pixels": np.frombuffer(raw, np.uint8).astype(np.float32)})
