"""A build compares backends with the module on values over all that clients may send; what counts as a difference."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from latebind.domain.errors import ExportError, InvalidRequest
from latebind.domain.model import TensorSpec
from latebind.program.backends import BACKENDS
from latebind.program.build import BuildReport, build_program
from latebind.program.eager import in_eager
from latebind.program.export import run_module
from latebind.program.graph import Graph, Node, TensorType, Value, Weight
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.program.trials import Trial
from latebind.program.verify import Agreement, Answered, Judge, answered, relative_error
from latebind.server.calls import Tensor as WireTensor
from tests.working import measured_by_work

EDGES = [0, 1, -1, 2**24 + 1, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), -(2**31) - 1, 1_700_000_000_123, 77]
IDS, HIGHEST = torch.tensor(EDGES).view(-1, 4), (1 << 63) - 1

Operation = Callable[..., Tensor]


class Does(nn.Module):
    """A function of the inputs and a few layers: of a table of seven words, and of four numbers."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.layer = nn.Embedding(7, 4), nn.Linear(4, 4)
        self._operation = operation
        self.eval()

    def forward(self, *inputs: Tensor) -> Tensor:
        return self._operation(self, *inputs)


def built(module: nn.Module, rows: tuple[Tensor, ...], folder: Path, **options: object) -> tuple[BuildReport, Program]:
    """Build for OpenVINO where it does as the module does, else for eager; both take as long by their work."""
    if BACKENDS["openvino"].unavailable() is not None:
        pytest.skip("needs OpenVINO")
    with measured_by_work():
        report = build_program(
            module,
            rows,
            directory=folder / "1",
            name="m",
            backends=("openvino", "eager"),
            max_batch=4,
            **options,  # type: ignore[arg-type]
        )
    return report, load_program(report.directory)


def refused(spec: TensorSpec, row: Tensor) -> bool:
    try:
        WireTensor(spec).check((row.numpy(),))
    except InvalidRequest:
        return True
    return False


@pytest.mark.parametrize(
    ("operation", "rows"),
    [
        (lambda net, ids: net.layer(net.words(ids % 7).sum(1)), IDS),
        (lambda net, ids: net.layer((ids - 1_700_000_000_000).float() / 1e10), IDS),
        (lambda net, image: net.layer(image.float() / 255 + (image + image).float() / 255), IDS.to(torch.uint8)),
    ],
)
def test_whole_numbers_are_computed_before_openvino(operation: Operation, rows: Tensor, tmp_path: Path) -> None:
    module = Does(operation)
    report, program = built(module, (torch.zeros_like(rows),), tmp_path)
    assert report.backend == "openvino"
    expected = run_module(module, (rows,))[0]
    torch.testing.assert_close(program.run(rows)[0], expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))
    for row in range(len(rows)):  # each alone
        one, (wanted,) = (rows[row : row + 1],), run_module(module, (rows[row : row + 1],))
        torch.testing.assert_close(program.run(*one)[0], wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max()))


def normalised(_: nn.Module, _other: Tensor, x: Tensor) -> Tensor:
    return functional.layer_norm(x.float(), x.shape[1:])  # of six times 1,700,000,000 OpenVINO makes -1


@pytest.mark.parametrize(
    ("operation", "rows", "asked_with", "backend"),
    [
        (lambda net, x: x.topk(3, 1).indices, (torch.randn(2, 4),), None, "eager"),  # it orders equal numbers otherwise
        (
            lambda net, x: x != 0,
            (torch.ones(2, 4, dtype=torch.float64),),
            (torch.tensor([[5e-324, 1e-300, -1e-46, 0.0]], dtype=torch.float64),),
            "eager",
        ),
        (normalised, (torch.ones(2, 6), torch.ones(2, 6, dtype=torch.int32)), None, "eager"),
        (lambda net, x, y: net.layer(y), (torch.randn(2, 3), torch.randn(2, 4)), None, "openvino"),  # x is not read
    ],
    ids=["equal numbers", "small numbers of float64", "one number", "unread input"],
)
def test_openvino_is_taken_where_it_answers_as_the_module_whatever_the_values(
    operation: Operation, rows: tuple[Tensor, ...], asked_with: tuple[Tensor, ...] | None, backend: str, tmp_path: Path
) -> None:
    module = Does(operation)
    report, program = built(module, rows, tmp_path)
    assert report.backend == backend
    given = asked_with or rows
    torch.testing.assert_close(program.run(*given)[0], run_module(module, given)[0])


def test_numbers_with_which_a_backend_differs_are_refused_by_the_frontend(tmp_path: Path) -> None:
    module = Does(lambda net, x: net.layer(torch.relu(net.layer(x))))
    report, _ = built(module, (torch.randn(2, 4),), tmp_path)
    (spec,) = report.inputs
    assert (report.backend, spec.largest is not None and spec.largest >= 1e6) == ("openvino", True)
    assert "others, NaN and infinities are refused" in dict(report.rows())["values of input"]
    for value in (float("nan"), float("inf"), float("-inf"), 3e38):
        row = torch.randn(1, 4)
        row[0, 2] = value
        assert refused(spec, row)
    assert not refused(spec, torch.tensor([[1e6, -1e6, 0.0, 1e-40]]))


@pytest.mark.parametrize(
    ("operation", "example", "least", "limit", "right", "wrong"),
    [
        (lambda net, ids: torch.gather(ids.float() * 2, 1, ids), 0, 0, 4, [0, 3, 2, 1], [[0, 4, 0, 0], [0, -1, 0, 0]]),
        (lambda net, ids: net.words(ids - 1).sum(1), 1, 1, 8, [1, 7, 2, 3], [[0, 1, 1, 1]]),
        (lambda net, ids: nn.functional.one_hot(ids, 7).sum(1), 0, 0, 7, [0, 6, 2, 3], [[7, 0, 0, 0]]),
        (lambda net, ids: (ids[:, :, None] == torch.arange(7)).sum(1), 0, 0, None, EDGES[:4], []),
        (lambda net, ids: net.words(torch.where(ids >= 0, ids, 0)).sum(1), 0, -(1 << 63), 7, EDGES[-4:-1], [[7] * 4]),
        (
            lambda net, ids: net.words(ids + torch.tensor([0, 3, 0, 0])).sum(1),
            [[6, 3, 2, 1]],
            0,
            None,
            [6, 3, 0, 1],
            [],
        ),
    ],
    ids=["index", "words from 1", "one-hot", "like one-hot", "one side", "offsets"],
)
def test_the_frontend_refuses_whole_numbers_for_which_the_module_raises_and_no_others(
    operation: Operation,
    example: int | list[list[int]],
    least: int,
    limit: int | None,
    right: list[int],
    wrong: list[list[int]],
    tmp_path: Path,
) -> None:
    module, rows = Does(operation), torch.zeros(2, 4, dtype=torch.int64) + torch.tensor(example)
    report, program = built(module, (rows,), tmp_path)
    (spec,) = program.spec.inputs
    assert (spec.least, spec.limit) == (least, limit)
    if limit == 4:
        assert dict(report.rows())["values of input"] == "0 to 3; others are refused"
    assert all(refused(spec, torch.tensor([row])) for row in wrong)
    row = torch.tensor([(right * 4)[:4]]).clamp(max=6 if limit == 7 else HIGHEST)
    assert not refused(spec, row)
    torch.testing.assert_close(program.run(row)[0], run_module(module, (row,))[0])


@pytest.mark.parametrize(
    ("operation", "says"),
    [
        (lambda net, x: net.layer(x) + net.words.weight.new_tensor(nan), "every answer .* is NaN or infinite"),
        (lambda net, x: net.words((x * 100).long()).sum(1), "raises for a row of small numbers"),
    ],
)
def test_what_answers_no_number_or_raises_for_small_ones_is_not_built(
    operation: Operation, says: str, tmp_path: Path
) -> None:
    with pytest.raises(ExportError, match=says):
        build_program(Does(operation), (torch.zeros(2, 4),), directory=tmp_path / "1", name="m", backends=("eager",))


def test_rows_of_data_are_compared(tmp_path: Path) -> None:
    module = Does(lambda net, x: torch.relu(net.layer(x)))
    data = torch.randn(3, 4)
    data[1, 2] = float("nan")  # which OpenVINO takes for 0
    report, _ = built(module, (torch.randn(2, 4),), tmp_path, data=(data,))
    assert report.backend == "eager"


def test_eager_takes_any_number_and_an_answer_without_any_is_no_answer_of_nan_alone(tmp_path: Path) -> None:
    module = Does(lambda net, x: x[:, :0])
    report = build_program(module, (torch.randn(2, 4),), directory=tmp_path / "1", name="m", backends=("eager",))
    assert report.inputs[0] == report.inputs[0].unlimited()


def test_a_check_of_numbers_takes_no_copy_of_a_row() -> None:
    wire = WireTensor(TensorSpec("x", "float32", (3, 224, 224), largest=1e30))
    row = np.zeros((3, 224, 224), np.float32)
    row.flags.writeable = False
    wire.check((row,))
    with pytest.raises(InvalidRequest, match=r"from nan to nan: they must be numbers from -1e\+30 to 1e\+30"):
        wire.check((np.full((3, 224, 224), np.nan, np.float32),))


def graph_of(*calls: tuple[str] | tuple[str, float]) -> Graph:
    """Return a graph that does this to a number, one after another: an operator's name, and perhaps a number."""
    type_ = TensorType("float32", (None, 1))
    nodes = tuple(
        Node(f"n{place}", f"aten.{name}", (Value(f"n{place - 1}" if place else "x"), *numbers), (), type_)
        for place, (name, *numbers) in enumerate(calls)
    )
    return Graph((TensorSpec("x", "float32", (1,)),), nodes, (("y", nodes[-1].name),))


NEGATIVE, ABSOLUTE = graph_of(("neg.default",)), graph_of(("abs.default",))
CANCELS = graph_of(("add.Tensor", 1e8), ("sub.Tensor", 1e8))  # 0 of 1, where the exact result is 1


def times(number: float) -> Graph:
    return graph_of(("mul.Tensor", number))


def less(number: float) -> Graph:
    return graph_of(("sub.Tensor", number))


def judge(graph: Graph) -> Judge:
    return Judge(graph, {}, 1e-5)


def asked(graph: Graph, *numbers: float, magnitude: float = 1.0) -> Answered:
    rows = torch.tensor(numbers)[:, None]
    return answered(in_eager(graph, {}), Trial(magnitude, (rows,)))


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 4.0], [1.0, 4.0], 0.0),
        ([1.0, 4.4], [1.0, 4.0], 0.1),
        ([1.0, nan, inf], [1.0, nan, inf], 0.0),
        ([0.0, 1.0], [nan, 1.0], inf),
        ([nan, 1.0], [0.0, 1.0], inf),
        ([inf, 1.0], [-inf, 1.0], inf),
        ([3.4028234663852886e38, 1.0], [inf, 1.0], inf),
        ([inf, 1.0], [nan, 1.0], inf),
        ([], [], 0.0),
    ],
)
def test_an_error_is_relative_to_the_largest_number_and_odd_numbers_must_agree(
    found: list[float], expected: list[float], error: float
) -> None:
    one, other = torch.tensor(found), torch.tensor(expected)
    assert relative_error((one,), (other,)) == pytest.approx(error)
    for another in ((one, one), (one[None],), (one.double(),)):
        assert relative_error(another, (other,)) == inf


@pytest.mark.parametrize(("answer", "wrong"), [(0.0, False), (1.0, False), (-10.0, False), (100.0, True), (nan, True)])
def test_where_numbers_cancel_an_answer_may_be_some_times_as_far_off_as_eager_itself(
    answer: float, wrong: bool
) -> None:
    given = asked(CANCELS, 1.0)
    assert given.alone[0].item() == 0.0
    assert judge(CANCELS).wrong_rows(lambda x: (torch.full((1, 1), answer),), given).any() == wrong


@pytest.mark.parametrize("answer", [0.0, 3e38, -inf, nan])
def test_where_eager_overflows_no_other_answer_is_excused_as_rounding(answer: float) -> None:
    given = asked(times(1e30), 1e9)
    assert judge(times(1e30)).wrong_rows(lambda x: (torch.full((1, 1), answer),), given).all()


def test_an_overflow_in_the_graph_that_the_module_does_not_have_excuses_no_other_answer() -> None:
    type_ = TensorType("float32", (None, 1))
    nodes = (
        Node("large", "aten.mul.Tensor", (Value("x"), Weight("w")), (), type_),  # infinite from 1e9 on
        Node("none", "aten.reciprocal.default", (Value("large"),), (), type_),
        Node("y", "aten.mul.Tensor", (Value("none"), Weight("w")), (), type_),
    )
    graph = Graph((TensorSpec("x", "float32", (1,)),), nodes, (("y", "y"),))
    found = Judge(graph, {"w": torch.tensor([[1e30]])}, 1e-5)
    given = answered(lambda x: (x.reciprocal(),), Trial(1e12, (torch.tensor([[1e12]]),)))
    assert not found.wrong_rows(lambda x: (x.reciprocal(),), given).any()
    assert found.wrong_rows(lambda x: (torch.zeros(1, 1),), given).all()


@pytest.mark.parametrize(("answer", "wrong"), [(inf, False), (nan, False), (1.0, True)])
def test_what_eager_answers_to_rows_together_and_alone_is_right_both_ways(answer: float, wrong: bool) -> None:
    given = replace(asked(NEGATIVE, 1.0), together=(torch.tensor([[inf]]),), alone=(torch.tensor([[nan]]),))
    assert judge(NEGATIVE).wrong_rows(lambda x: (torch.full((1, 1), answer),), given).any() == wrong


MAGNITUDES = (2.0, 1e6, 1e9, 1e12, 1e15, 3e38, inf)


def agreement(graph: Graph, *numbers: float, usual: float = 2.0, specs: tuple[TensorSpec, ...] = ()) -> Agreement:
    """Return what a graph answers to a number of each magnitude, or to these."""
    sizes = (usual, *MAGNITUDES[1:])
    answers = tuple(asked(graph, n, magnitude=size) for n, size in zip(numbers or sizes, sizes, strict=True))
    return Agreement(specs, answers, judge(graph))


def agreed(graph: Graph, other_from: float, *, usual: float = 2.0) -> float | None:
    """Return up to which magnitude something does as the graph, which does otherwise from one magnitude on."""

    def run(x: Tensor) -> tuple[Tensor]:
        (found,) = in_eager(graph, {})(x)
        return (torch.where(x < other_from, found, -1.0),)

    return agreement(graph, usual=usual).largest(run)


@pytest.mark.parametrize(
    ("other_from", "sure"),
    [(2.0, None), (1e6, None), (1e9, None), (1e12, None), (1e15, 1e9), (3e38, 1e12), (inf, 1e15)],
)
def test_numbers_are_sure_up_to_the_magnitude_before_the_last_that_agreed(
    other_from: float, sure: float | None
) -> None:
    assert agreed(ABSOLUTE, other_from) == sure


def test_no_limit_keeps_small_numbers_out_wherever_they_were_drawn() -> None:
    found = agreement(ABSOLUTE, *(1e-40 if size == 1e15 else size for size in MAGNITUDES))
    assert found.largest(lambda x: (torch.where(x.abs() < 1e-38, 1.0, x.abs()),)) is None


def test_what_agrees_on_everything_is_sure_of_any_number_and_must_raise_where_the_module_does() -> None:
    found = agreement(ABSOLUTE)
    assert found.largest(lambda x: (x.abs(),)) == inf
    raising = replace(found.answers[-1], raising=((torch.zeros(1, 1),),))
    assert replace(found, answers=(*found.answers[:-1], raising)).largest(lambda x: (x.abs(),)) is None


def test_numbers_that_overflow_inside_of_the_network_are_not_sure_though_they_agreed() -> None:
    assert agreed(times(1e25), inf) == 1e9


def test_numbers_are_sure_only_where_they_are_far_above_usual_ones() -> None:
    assert agreed(ABSOLUTE, 1e15, usual=1e7) == 1e9
    assert agreed(ABSOLUTE, 1e15, usual=1e8) is None


@pytest.mark.parametrize(
    ("numbers", "whole", "each"), [((1.0, 2.0), True, True), ((2.0, 1.0), True, False), ((1.0, 3.0), False, False)]
)
def test_stages_of_which_each_undoes_what_another_did_wrong_do_not_agree(
    numbers: tuple[float, float], whole: bool, each: bool
) -> None:
    stages = [lambda x, number=number: (x - number,) for number in numbers]
    found = Agreement((), (asked(less(3.0), 5.0, 7.0),), judge(less(3.0)))
    assert found.holds(stages, (), 1.0) == whole
    assert found.holds(stages, (less(1.0), less(2.0)), 1.0) == each


@pytest.mark.parametrize("graphs", [(), (ABSOLUTE,)], ids=["whole", "by stage"])
def test_a_chain_must_agree_as_far_as_numbers_are_taken(graphs: tuple[Graph, ...]) -> None:
    def wrong_from_1e9(x: Tensor) -> tuple[Tensor]:
        return (torch.where(x < 1e9, x.abs(), -1.0),)

    found = [agreement(ABSOLUTE).holds((wrong_from_1e9,), graphs, largest) for largest in (0.0, 1e6, 1e9)]
    assert found == [True, True, False]


def test_numbers_are_limited_by_their_dtype_too_and_only_where_a_backend_differs() -> None:
    specs = tuple(TensorSpec(dtype, dtype, (1,)) for dtype in ("float32", "float16", "int64"))
    found = agreement(ABSOLUTE, specs=specs)
    assert [spec.largest for spec in found.limited(1e9)] == [1e9, 65504.0, None]
    assert found.limited(inf) == specs
