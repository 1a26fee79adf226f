"""The interface of preprocessors, which make a model's tensors from what clients send. Only types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import RawInput

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Raw: TypeAlias = str | bytes  # a text, or what a file of a picture or a sound has
Given: TypeAlias = Mapping[str, Sequence[Raw]]  # elements of raw inputs, by the input's name
Kept: TypeAlias = Literal["start", "end"]  # the end that stays of a text that is cut


class Reading(NamedTuple):
    """How inputs are read. Where one is too large, it is cut if it may `truncate`, and the end stays that is `kept`.

    `prompt` names what is put before each text. None is what the model has by default.
    """

    truncate: bool = False
    prompt: str | None = None
    kept: Kept | None = None


USUAL, CUT = Reading(), Reading(truncate=True)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row as its model takes it: for each input an array of the row's own shape, without the batch dimension.

    `used` is how many tokens a text has, special ones included, and `cut` how many more were left out to fit; samples
    of a sound. `spans` `(used, 2) int32` says which characters of its text each token is of, from the first to behind
    the last; (0, 0) of a special one. They are there where a model tags tokens.
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

    @property
    def makes(self) -> frozenset[str]:
        """The names of the model's inputs that it makes."""

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        """Return a row for each element that every raw input was given, in their order.

        Raises `InvalidRequest`, which names the element, for what cannot be read, or is too large and may not be cut.
        """


def columns(raw: Sequence[RawInput], given: Given) -> dict[str, Sequence[Raw]]:
    """Return what was given, checked: known names only, what must be there is, and all have equally many elements."""
    for name in given:
        if name not in {one.name for one in raw}:
            known = ", ".join(one.name for one in raw)
            raise InvalidRequest(f"there is no input {name[:100]!r}: this model reads {known}")
    found = {one.name: given[one.name] for one in raw if one.name in given}
    for one in raw:
        if not one.optional and one.name not in found:
            raise InvalidRequest(f"input {one.name!r} is missing")
    if len({len(elements) for elements in found.values()}) > 1:
        sizes = ", ".join(f"{name} {len(elements)}" for name, elements in found.items())
        raise InvalidRequest(f"the inputs have different numbers of elements ({sizes}): give equally many")
    return found
