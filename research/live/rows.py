"""The rows that engines are asked for in turn, and the first answer to each, with which the others are compared."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from latebind.bench.client import Array
from latebind.domain.model import ModelSpec
from latebind.sequence.padding import steps
from latebind.server.gateway import Answer


class Rows:
    """Arrays `(N, *shape)` by name. What the first side to be asked says to a row is its right answer.

    Answers are alike where all tokens of a sequence are the same, or where a classifier names the same class.
    """

    def __init__(self, spec: ModelSpec, inputs: Mapping[str, Array]) -> None:
        self.spec = spec
        self.next = 0
        self.others = 0  # answers that differ from the first to the same row
        self.count = len(next(iter(inputs.values())))
        self._inputs = inputs
        self._answers: dict[int, Array] = {}  # tokens, or the class

    def take(self) -> tuple[int, dict[str, Array]]:
        """Return the next row and its number."""
        row = self.next % self.count
        self.next += 1
        return row, {name: array[row : row + 1] for name, array in self._inputs.items()}

    def alike(self, row: int, answer: Answer) -> bool:
        """Tell whether an answer is like the first one to the same row, and count it in `others` if not."""
        (output, *_) = self.spec.outputs
        given: np.ndarray[Any, Any] = answer.outputs[output.name][0]
        found = given if self.spec.kinds else np.asarray(given.argmax())
        same = np.array_equal(self._answers.setdefault(row, found), found)
        self.others += not same
        return same

    def lengths_of(self, row: int) -> tuple[int, int]:
        """Return the steps of input and answer of a row, 1 where there are none."""
        row %= self.count
        if not self.spec.kinds:
            return 1, 1
        taken = {name: array[row : row + 1] for name, array in self._inputs.items()}
        return steps(self.spec, taken)[0], len(self._answers[row])

    def lengths(self) -> list[tuple[int, int]]:
        """Return the lengths of all rows that have been answered."""
        return [self.lengths_of(row) for row in (sorted(self._answers) or range(1))]
