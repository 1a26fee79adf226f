"""What every preprocessor does: it makes the tensors that a model takes of what clients send. Only types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from latebind.domain.model import RawInput

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Raw: TypeAlias = str | bytes  # a text, or what a file of a picture or a sound has


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row as its model takes it: for each input an array of the row's own shape, without the batch dimension.

    `used` is how many tokens a text has, special ones included, and `cut` how many more were left out to fit. `spans`
    `(used, 2) int32` says which characters of its text each token is of, from the first to behind the last; (0, 0) of a
    special one.
    """

    tensors: Mapping[str, Array]
    used: int = 0
    cut: int = 0
    spans: Array | None = None


class Preprocessor(Protocol):
    """Makes the inputs of one model. It may be called by several threads at once."""

    @property
    def raw(self) -> tuple[RawInput, ...]:
        """What it reads."""

    def prepare(self, given: Mapping[str, Sequence[Raw]], *, truncate: bool = False) -> list[Prepared]:
        """Return a row for each element that every raw input was given, in their order.

        Raises `InvalidRequest`, which names the element, for what cannot be read; for one that is too large also where
        it may not `truncate`.
        """
