"""What a client gets of each output that it asked for, over any transport: values, or the best classes.

Classes are texts "value:index", as in the protocol's classification extension (datatype BYTES).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from latebind.server.calls import CallOutput
from latebind.server.gateway import Answer, Array

TEXTS: Final = "BYTES"


class Result(NamedTuple):
    """One output to send. `values` is an array of this shape, or a sequence of texts in row-major order."""

    datatype: str
    shape: tuple[int, ...]
    values: Array | Sequence[str]

    def raw(self) -> memoryview:
        """Return the values as the binary tensor extension has them; a text is its length in 4 bytes, then UTF-8."""
        if isinstance(self.values, np.ndarray):
            return self.values.data
        texts = [text.encode() for text in self.values]
        return memoryview(b"".join([len(text).to_bytes(4, "little") + text for text in texts]))

    def flat(self) -> Array | Sequence[str]:
        """Return the values without their shape, as they stand in JSON."""
        return self.values.reshape(-1) if isinstance(self.values, np.ndarray) else self.values


def result(wanted: CallOutput, answer: Answer) -> Result:
    """Return one output of an answer in the form that the client wants."""
    array = _array(wanted, answer)
    if not wanted.classes:
        return Result(wanted.tensor.datatype, array.shape, array)
    rows = best_classes(array, wanted.classes)
    return Result(TEXTS, (len(rows), len(rows[0])), [text for row in rows for text in row])


def best_classes(array: Array, count: int) -> list[list[str]]:
    """Return the `count` largest values of each row of `(N, ...)` with their indices, the best first, NaN last.

    Of equal values, the one with the lower index comes first. A row with fewer values returns all of them.
    """
    form = "f" if array.dtype.kind == "f" else "d"
    rows = array.reshape(len(array), -1)
    return [[f"{row[index]:{form}}:{index}" for index in _best(row, count)] for row in rows]


def _array(wanted: CallOutput, answer: Answer) -> Array:
    tensor = wanted.tensor
    return np.ascontiguousarray(answer.outputs[tensor.name], tensor.dtype)


def _best(row: Array, count: int) -> list[int]:
    """Return the indices of the largest values. Linear in the length of the row: only those are sorted."""
    ranked = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    among = np.flatnonzero(ranked >= np.partition(ranked, -count)[-count]) if count < len(row) else np.arange(len(row))
    backwards = among[::-1]  # of equal values the last one first, because the sorted result is reversed
    found: list[int] = backwards[np.argsort(ranked[backwards], kind="stable")][::-1][:count].tolist()
    return found
