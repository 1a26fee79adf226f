"""The rows on which backends are compared: values over all that may be sent, and those at which a graph may decide."""

from dataclasses import replace
from math import inf

import pytest
import torch

from latebind.domain.model import TensorSpec
from latebind.program import trials as drawing
from latebind.program.graph import Graph, Node, TensorType, Value, Weight
from latebind.program.trials import KINDS, USUAL, Trial, trials

ROWS = torch.ones(2, 4), torch.ones(2, 4, dtype=torch.int64)
X, IDS = TensorSpec("x", "float32", (4,)), TensorSpec("ids", "int64", (4,))
ALIKE = KINDS + 1  # the trial of rows of one number


def drawn(ids: TensorSpec = IDS) -> tuple[Trial, ...]:
    """Return the trials of a graph that compares with 41,000 and with the number of a weight."""
    type_ = TensorType("bool", (None, 4))
    nodes = (
        Node("one", "aten.gt.Scalar", (Value("ids"), 41_000), (), type_),
        Node("other", "aten.gt.Tensor", (Value("ids"), Weight("edge")), (), type_),
    )
    graph = Graph((X, IDS), nodes, (("one", "one"), ("other", "other")))
    return trials(graph, {"edge": torch.tensor([77_000])}, (X, ids), [ROWS])


def numbers(found: tuple[Trial, ...]) -> set[int]:
    return {number for trial in found[1:] for number in trial.rows[1].flatten().tolist()}


def test_magnitudes_ascend_to_the_largest_number_of_a_dtype_and_to_infinity() -> None:
    found = drawn()
    sizes = [trial.magnitude for trial in found]
    assert sizes == sorted(sizes)
    assert sizes[-2:] == [torch.finfo(torch.float32).max, inf]
    for trial in found[1:-1]:
        assert trial.rows[0].abs().max() == trial.magnitude
    assert {str(value) for value in found[-1].rows[0].flatten().tolist()} > {"nan", "inf", "-inf"}


def test_each_small_number_of_a_dtype_is_in_all_places_of_a_row_of_usual_magnitude() -> None:
    for dtype, least in (("float16", 2.0**-24), ("float32", 2.0**-149), ("float64", 2.0**-1074)):
        graph = Graph((replace(X, dtype=dtype),), (), (("x", "x"),))
        rows = (torch.ones(2, 4, dtype=getattr(torch, dtype)),)
        usual = [trial for trial in trials(graph, {}, graph.inputs, [rows]) if trial.magnitude <= USUAL]
        alike = {row[0] for trial in usual for row in trial.rows[0].tolist() if len(set(row)) == 1}
        assert alike >= {0.0, least, torch.finfo(getattr(torch, dtype)).smallest_normal}


def test_however_few_rows_there_are_one_is_about_as_large_as_its_magnitude(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawing, "BY_WORK", drawing.BY_WORK[-1:])  # one row of each
    for number, trial in enumerate(drawn()[1:-1], 1):
        assert len(trial.rows[0]) == (2 if number == ALIKE else 1)
        if trial.magnitude > USUAL:
            assert trial.rows[0].abs().max() > trial.magnitude / 100


def test_whole_numbers_come_from_the_ends_of_their_range_and_around_what_a_graph_compares_with() -> None:
    near = {constant + more for constant in (41_000, 77_000) for more in (-1, 0, 1)}
    assert numbers(drawn()) >= {-(1 << 63), (1 << 63) - 1, 0, 1, -1, (1 << 53) + 1, *near}
    assert numbers(drawn(TensorSpec("ids", "int64", (4,), limit=9, least=2))) == set(range(2, 9))


def test_rows_of_one_number_are_of_many_sizes() -> None:
    for tensor in drawn()[ALIKE].rows:
        assert (tensor == tensor[:, :1]).all()
        sizes = {len(f"{abs(float(value)):.0f}") for value in tensor[:, 0]}
        assert len(set(tensor[:, 0].tolist())) > 40
        assert len(sizes) > 4
