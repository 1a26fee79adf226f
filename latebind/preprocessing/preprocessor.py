"""The interface of preprocessors, which convert what clients send to a model's tensors. Only types."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from latebind.domain.errors import InvalidRequest
from latebind.domain.model import RawInput

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Raw: TypeAlias = str | bytes  # a text, or the contents of a picture or sound file
Given: TypeAlias = Mapping[str, Sequence[Raw]]  # elements of raw inputs, by the input's name
Kept: TypeAlias = Literal["start", "end"]  # the part that stays of a text that is cut


class Reading(NamedTuple):
    """How inputs are read. One that is too large is cut if `truncate`, so that its `kept` end stays.

    `prompt` names what is put before each text; None: the model's default.
    """

    truncate: bool = False
    prompt: str | None = None
    kept: Kept | None = None


USUAL, CUT = Reading(), Reading(truncate=True)


@dataclass(frozen=True, slots=True)
class Prepared:
    """One row as its model takes it: for each input an array of the row's own shape, without the batch dimension.

    `used` is how many tokens a text has, special ones included, and `cut` how many more were left out to fit; for a
    sound, samples. `spans` `(used, 2) int32`, only for models that tag tokens, are the characters of its text that each
    token covers, from the first to past the last; (0, 0) for a special one.
    """

    tensors: Mapping[str, Array]
    used: int = 0
    cut: int = 0
    spans: Array | None = None


class Preprocessor(Protocol):
    """Makes the inputs of one model. Several threads may call it at once."""

    @property
    def raw(self) -> tuple[RawInput, ...]:
        """What it reads."""

    @property
    def makes(self) -> frozenset[str]:
        """The names of the model's inputs that it makes."""

    def prepare(self, given: Given, how: Reading = USUAL) -> list[Prepared]:
        """Return a row for each element of the raw inputs, in their order.

        Raises `InvalidRequest`, which names the element, for what cannot be read, or is too large and may not be cut.
        """


def columns(raw: Sequence[RawInput], given: Given) -> dict[str, Sequence[Raw]]:
    """Return `given`, checked: only known names, all required ones, and equally many elements for each."""
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
