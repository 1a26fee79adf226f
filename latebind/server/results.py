"""What a client gets of each output that it asked for, whatever transport takes it there: numbers, or the best classes.

Classes are texts "value:index", as the protocol's classification extension has them (datatype BYTES).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from latebind.server.calls import CallOutput
from latebind.server.gateway import Answer, Array

TEXTS: Final = "BYTES"
SHORT: Final = 1 << 12  # bytes


class Result(NamedTuple):
    """One output: `values` are an array of this shape, or texts in its order."""

    datatype: str
    shape: tuple[int, ...]
    values: Array | Sequence[str]

    def raw(self) -> memoryview:
        """Return the values as the binary tensor extension has them: a text is its length, 4 bytes, and UTF-8."""
        if isinstance(self.values, np.ndarray):
            return self.values.data
        texts = [text.encode() for text in self.values]
        return memoryview(b"".join([len(text).to_bytes(4, "little") + text for text in texts]))


def raw_output(wanted: CallOutput, answer: Answer) -> bytes | memoryview:
    """Return what `Result.raw` does, to be put into a message: of few values a copy, which is quicker made."""
    if wanted.classes:
        return result(wanted, answer).raw()
    array = _array(wanted, answer)
    return array.tobytes() if array.nbytes <= SHORT else array.data


def json_values(wanted: CallOutput, answer: Answer) -> Array | Sequence[str]:
    """Return the values of an output without their shape, as they stand in JSON."""
    return result(wanted, answer).values if wanted.classes else _array(wanted, answer).reshape(-1)


def result(wanted: CallOutput, answer: Answer) -> Result:
    """Return one output of an answer as it is wanted."""
    array = _array(wanted, answer)
    if not wanted.classes:
        return Result(wanted.tensor.datatype, array.shape, array)
    rows = best_classes(array, wanted.classes)
    return Result(TEXTS, (len(rows), len(rows[0])), [text for row in rows for text in row])


def best_classes(array: Array, count: int) -> list[list[str]]:
    """Return the largest `count` values of each row of `(N, ...)`, the best first; what is no number comes last.

    Of equal values the one in front is better. Rows with fewer values than that have all of them.
    """
    form = "f" if array.dtype.kind == "f" else "d"
    rows = array.reshape(len(array), -1)
    return [[f"{row[index]:{form}}:{index}" for index in _best(row, count)] for row in rows]


def _array(wanted: CallOutput, answer: Answer) -> Array:
    tensor = wanted.tensor
    return np.ascontiguousarray(answer.outputs[tensor.name], tensor.dtype)


def _best(row: Array, count: int) -> list[int]:
    """Return the places of the largest values. Linear in the length of the row, of which only those are sorted."""
    ranked = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    among = np.flatnonzero(ranked >= np.partition(ranked, -count)[-count]) if count < len(row) else np.arange(len(row))
    backwards = among[::-1]  # the last of equals in front, for what is sorted is reversed
    found: list[int] = backwards[np.argsort(ranked[backwards], kind="stable")][::-1][:count].tolist()
    return found
