"""Streams of requests with uneven classes: some come more often, and which ones changes. Numbers only."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


def zipf_stream(labels: Rows, *, alpha: float, phases: int, length: int, random: np.random.Generator) -> Rows:
    """Return numbers of rows: `phases` of `length` each, in which the class of rank k comes as often as k^-alpha says.

    Ranks move on by one from phase to phase, so the class that dominates changes (GATI, section 7.2.2). A row comes
    again only when all rows of its class have come.
    """
    classes = random.permutation(np.unique(labels))
    shares = np.arange(1, len(classes) + 1.0) ** -alpha
    decks = {int(answer): _Deck(np.flatnonzero(labels == answer), random) for answer in classes}
    drawn = [random.choice(np.roll(classes, -phase), length, p=shares / shares.sum()) for phase in range(phases)]
    return np.array([decks[int(answer)].draw() for answer in np.concatenate(drawn)])


class _Deck:
    def __init__(self, rows: Rows, random: np.random.Generator) -> None:
        self._rows, self._random = rows, random
        self._left: list[int] = []

    def draw(self) -> int:
        if not self._left:
            self._left = self._random.permutation(self._rows).tolist()
        return self._left.pop()


def jittered(image: NDArray[Any], cells: int, random: np.random.Generator) -> NDArray[Any]:
    """Return an image `(C, H, W)` shifted by up to `cells`, edges repeated, and mirrored every other time.

    So that an image that comes again is not the same request.
    """
    if not cells:
        return image
    padded = np.pad(image, ((0, 0), (cells, cells), (cells, cells)), mode="edge")
    down, right = random.integers(0, 2 * cells + 1, 2)
    moved = padded[:, down : down + image.shape[1], right : right + image.shape[2]]
    return np.ascontiguousarray(moved[:, :, ::-1] if random.random() < 0.5 else moved)


def brighter(inputs: Mapping[str, NDArray[Any]], by: float) -> dict[str, NDArray[Any]]:
    """Return inputs with `by` added to every value of floating point: a change that no class shows."""
    return {name: rows + rows.dtype.type(by) if rows.dtype.kind == "f" else rows for name, rows in inputs.items()}
