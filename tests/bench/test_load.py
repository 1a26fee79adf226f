"""What `bench load` makes of answers: requests that one side refused are no disagreement."""

import numpy as np
import pytest

from latebind.bench.client import Answered
from latebind.bench.load import LoadReport, Side


def side(name: str, statuses: list[int], classes: list[int], stages: list[int]) -> Side:
    answers = [Answered(status, 0.001, {}, stage) for status, stage in zip(statuses, stages, strict=True)]
    return Side(name, answers, 100.0, np.array(classes))


def test_what_the_other_side_refused_is_not_counted_against_an_exit() -> None:
    off = side("off", [200, 200, 503, 503], [1, 1, -1, -1], [3, 3, -1, -1])
    on = side("on", [200, 200, 200, 503], [1, 2, 1, -1], [0, 0, 0, -1])
    report = LoadReport("model", 10.0, 0, off, on, None)
    assert report.fidelity == pytest.approx(0.5)
    (row,) = report.exit_rows()
    assert (row["share"], row["fidelity"]) == ("100.0%", "0.500")
    assert len(report.seconds_at(0)) == 3


def test_an_exit_of_which_the_other_side_answered_none_has_no_fidelity() -> None:
    off = side("off", [503, 200], [-1, 1], [-1, 3])
    on = side("on", [200, 200], [1, 1], [0, 3])
    assert np.isnan(LoadReport("model", 10.0, 0, off, on, None).fidelity_at(0))
