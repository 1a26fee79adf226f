"""What `bench load` and `bench exits` make of answers: requests that one side refused are no disagreement."""

import numpy as np
import pytest

from latebind.bench.client import Answered
from latebind.bench.exits import Compared, Side


def side(classes: list[int], stages: list[int]) -> Side:
    """Return answers of these classes that left at these stages; what has class -1 was refused."""
    scores = np.eye(3, dtype=np.float32)
    return Side(
        [
            Answered(503, 0.001, {}, -1) if one < 0 else Answered(200, 0.001, {"y": scores[None, one]}, stage)
            for one, stage in zip(classes, stages, strict=True)
        ],
        took=1.0,
    )


def test_what_the_other_side_refused_is_not_counted_against_an_exit() -> None:
    found = Compared(side([1, 1, -1, -1], [3, 3, -1, -1]), side([1, 2, 1, -1], [0, 0, 0, -1]), np.array([1, 1, 1, 1]))
    assert found.fidelity == pytest.approx(0.5)
    (row,) = found.exit_rows()
    assert (row["share"], row["fidelity"]) == ("100.0%", "0.500")
    assert [(row["answered"], row["accuracy"]) for row in found.rows()] == [("50.0%", "1.0000"), ("75.0%", "0.6667")]


def test_an_exit_of_which_the_other_side_answered_none_has_no_fidelity() -> None:
    found = Compared(side([-1, 1], [-1, 3]), side([1, 1], [0, 3]))
    assert [row["fidelity"] for row in found.exit_rows()] == ["nan", "1.000"]
