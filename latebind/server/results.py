"""What a client gets of an answer: each output in the form that the call wants, the same for every transport."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec import structs

from latebind.domain.model import TEXT_OUTPUT, ModelSpec
from latebind.preprocessing.decoding import TextDecoder
from latebind.server.calls import BYTES, CallOutput, LabelOutput, TextOutput
from latebind.server.gateway import Answer, Array
from latebind.server.streaming import written


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


def with_texts(spec: ModelSpec, answer: Answer, decoder: TextDecoder) -> Answer:
    """Return an answer with the text of each row's tokens `(N, 1)`."""
    tokens = answer.outputs[spec.outputs[0].name]
    texts = [[decoder.text(written(row, spec.outputs[0].padding))] for row in tokens.tolist()]
    return structs.replace(answer, outputs={**answer.outputs, TEXT_OUTPUT: np.array(texts, object)})


def result(wanted: CallOutput, answer: Answer) -> Result:
    """Return one output of an answer in the form that the client wants: its values, or the best classes.

    Classes are texts "value:index", or "value:index:label" where the model has labels, as in the protocol's
    classification extension (datatype BYTES).
    """
    tensor = wanted.tensor
    if isinstance(tensor, TextOutput):
        texts = answer.outputs[tensor.name]
        return Result(BYTES, texts.shape, texts.ravel().tolist())
    if isinstance(tensor, LabelOutput):
        labels = [tensor.labels[number] for number in answer.outputs[tensor.name].ravel().tolist()]
        return Result(BYTES, (len(labels), 1), labels)
    array = np.ascontiguousarray(answer.outputs[tensor.name], tensor.dtype)
    if not wanted.classes:
        return Result(tensor.datatype, array.shape, array)
    rows = best_classes(tensor.numbers(array), wanted.classes, tensor.labels)
    return Result(BYTES, (len(rows), len(rows[0])), [text for row in rows for text in row])


def best_classes(array: Array, count: int, labels: Sequence[str] = ()) -> list[list[str]]:
    """Return the `count` largest values of each row of `(N, ...)` with their indices, the best first, NaN last.

    Their labels follow, if there are any. Of equal values, the one with the lower index comes first. A row with fewer
    values returns all of them.
    """
    form = "f" if array.dtype.kind == "f" else "d"
    rows = array.reshape(len(array), -1)
    suffixes = [f":{label}" for label in labels] or [""] * rows.shape[1]
    return [[f"{row[index]:{form}}:{index}{suffixes[index]}" for index in _best(row, count)] for row in rows]


def _best(row: Array, count: int) -> list[int]:
    """Return the indices of the largest values. Linear in the length of the row: only those are sorted."""
    ranked = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
    among = np.flatnonzero(ranked >= np.partition(ranked, -count)[-count]) if count < len(row) else np.arange(len(row))
    backwards = among[::-1]  # of equal values the last one first, because the sorted result is reversed
    found: list[int] = backwards[np.argsort(ranked[backwards], kind="stable")][::-1][:count].tolist()
    return found
