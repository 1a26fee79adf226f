"""A build compares backends with the module on values over all that clients may send."""

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
from latebind.program.agreement import Agreement, _check_numbers, in_order
from latebind.program.backends import BACKENDS, compile_graph
from latebind.program.build import BuildReport, Candidate, build_program, judged
from latebind.program.export import Exported, export, run_module
from latebind.program.graph import Graph
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.server.calls import Tensor as WireTensor
from tests.program.test_verify import ABSOLUTE, MAGNITUDES, asked, reference
from tests.working import measured_by_work

EDGES = [0, 1, -1, 2**24 + 1, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), -(2**31) - 1, 1_700_000_000_123, 77]
IDS = torch.tensor(EDGES).view(-1, 4)

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


def test_a_backend_that_differs_only_on_values_unlike_the_examples_is_not_taken(tmp_path: Path) -> None:
    module = Does(lambda net, x: x.topk(3, 1).indices)  # OpenVINO orders equal numbers otherwise
    rows = torch.randn(2, 4)
    report, program = built(module, (rows,), tmp_path)
    assert report.backend == "eager"
    assert torch.equal(program.run(rows)[0], run_module(module, (rows,))[0])


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


def test_numbers_that_only_float64_has_are_compared(tmp_path: Path) -> None:
    module = Does(lambda net, x: x != 0)
    report, program = built(module, (torch.ones(2, 4, dtype=torch.float64),), tmp_path)
    rows = torch.tensor([[5e-324, 1e-300, -1e-46, 0.0]], dtype=torch.float64)
    assert program.run(rows)[0].tolist() == [[True, True, True, False]]
    assert report.backend == "eager"


def test_rows_of_one_whole_number_are_compared(tmp_path: Path) -> None:
    def normalised(_: nn.Module, _other: Tensor, x: Tensor) -> Tensor:
        return functional.layer_norm(x.float(), x.shape[1:])  # of six times 1,700,000,000 OpenVINO makes -1

    report, _ = built(Does(normalised), (torch.ones(2, 6), torch.ones(2, 6, dtype=torch.int32)), tmp_path)
    assert report.backend == "eager"


def test_eager_takes_any_number(tmp_path: Path) -> None:
    module = Does(lambda net, x: net.layer(torch.relu(net.layer(x))))
    report = build_program(module, (torch.randn(2, 4),), directory=tmp_path / "1", name="m", backends=("eager",))
    assert report.inputs[0] == report.inputs[0].unlimited()


def test_an_index_out_of_range_is_refused_by_the_frontend(tmp_path: Path) -> None:
    module = Does(lambda net, x, i: torch.gather(x, 1, i))
    report, program = built(module, (torch.randn(2, 4), torch.zeros(2, 4, dtype=torch.int64)), tmp_path)
    spec = program.spec.inputs[1]
    assert (spec.least, spec.limit) == (0, 4)
    assert dict(report.rows())["values of input_1"] == "0 to 3; others are refused"
    assert refused(spec, torch.tensor([[0, 4, 0, 0]]))
    assert refused(spec, torch.tensor([[0, -1, 0, 0]]))
    assert not refused(spec, torch.tensor([[0, 3, 2, 1]]))


def test_words_that_are_counted_from_1_are_served(tmp_path: Path) -> None:
    module = Does(lambda net, ids: net.words(ids - 1).sum(1))
    _, program = built(module, (torch.ones(2, 4, dtype=torch.int64),), tmp_path)
    (spec,) = program.spec.inputs
    assert (spec.least, spec.limit, spec.filler) == (1, 8, 1)


def test_one_hot_is_limited_to_its_classes_and_a_like_comparison_is_not(tmp_path: Path) -> None:
    ids = torch.zeros(2, 4, dtype=torch.int64)
    hot, _ = built(Does(lambda net, i: nn.functional.one_hot(i, 7).sum(1)), (ids,), tmp_path / "hot")
    like, _ = built(Does(lambda net, i: (i[:, :, None] == torch.arange(7)).sum(1)), (ids,), tmp_path / "like")
    assert [(report.inputs[0].least, report.inputs[0].limit) for report in (hot, like)] == [(0, 7), (0, None)]


def test_what_a_module_answers_all_the_same_is_not_limited(tmp_path: Path) -> None:
    module = Does(lambda net, ids: net.words(torch.where((ids >= 0) & (ids < 7), ids, 0)).sum(1))
    report, program = built(module, (torch.zeros(2, 4, dtype=torch.int64),), tmp_path)
    assert report.inputs[0].limit is None
    assert torch.equal(program.run(IDS)[0], run_module(module, (IDS,))[0])


def test_what_a_module_answers_on_one_side_of_a_table_is_not_limited_and_eager_raises_on_the_other(
    tmp_path: Path,
) -> None:
    module = Does(lambda net, ids: net.words(torch.where(ids >= 0, ids, 0)).sum(1))
    report, program = built(module, (torch.zeros(2, 4, dtype=torch.int64),), tmp_path)
    assert (report.inputs[0].least, report.inputs[0].limit, report.backend) == (0, None, "eager")
    rows = torch.tensor([[-1, 6, 0, -(2**63)]])
    assert torch.equal(program.run(rows)[0], run_module(module, (rows,))[0])


def test_a_network_without_a_number_in_its_answers_is_not_built(tmp_path: Path) -> None:
    module = Does(lambda net, x: net.layer(x))
    with torch.no_grad():
        module.layer.bias.fill_(float("nan"))
    with pytest.raises(ExportError, match=r"every answer .* is NaN .* weight 'layer\.bias'"):
        build_program(module, (torch.randn(2, 4),), directory=tmp_path / "1", name="m", backends=("eager",))


def test_a_module_that_raises_for_small_numbers_is_not_built(tmp_path: Path) -> None:
    module = Does(lambda net, x: net.words((x * 100).long()).sum(1))
    with pytest.raises(ExportError, match="raises for a row of small numbers"):
        build_program(module, (torch.zeros(2, 4),), directory=tmp_path / "1", name="m", backends=("eager",))


def test_rows_of_data_are_compared(tmp_path: Path) -> None:
    module = Does(lambda net, x: torch.relu(net.layer(x)))
    data = torch.randn(3, 4)
    data[1, 2] = float("nan")  # which OpenVINO takes for 0
    report, _ = built(module, (torch.randn(2, 4),), tmp_path, data=(data,))
    assert report.backend == "eager"


def test_an_input_that_nothing_reads_is_no_hindrance(tmp_path: Path) -> None:
    module = Does(lambda net, x, y: net.layer(y))
    report, program = built(module, (torch.randn(2, 3), torch.randn(2, 4)), tmp_path)
    rows = torch.randn(3, 3), torch.randn(3, 4)
    torch.testing.assert_close(program.run(*rows)[0], run_module(module, rows)[0])
    assert report.backend == "openvino"


def agreement(*specs: TensorSpec, may_raise: str | None = None) -> Agreement:
    answers = tuple(asked(ABSOLUTE, size, magnitude=size) for size in MAGNITUDES)
    return Agreement(specs, answers, reference(ABSOLUTE), may_raise)


def test_where_a_module_may_raise_only_eager_is_taken() -> None:
    found, why = agreement(may_raise="an index may be out of range"), "an index may be out of range"
    candidates = [Candidate(backend, uncut=lambda x: (x.abs(),)) for backend in ("eager", "openvino")]
    assert [judged(one, found).refused for one in candidates] == [None, why]


@pytest.mark.parametrize("graphs", [(), (ABSOLUTE,)], ids=["whole", "by stage"])
def test_a_chain_must_agree_as_far_as_numbers_are_taken(graphs: tuple[Graph, ...]) -> None:
    def wrong_from_1e9(x: Tensor) -> tuple[Tensor]:
        return (torch.where(x < 1e9, x.abs(), -1.0),)

    assert [agreement().holds((wrong_from_1e9,), graphs, largest) for largest in (0.0, 1e6, 1e9)] == [True, True, False]


def test_numbers_are_limited_by_their_dtype_too_and_only_where_a_backend_differs() -> None:
    found = agreement(
        TensorSpec("x", "float32", (1,)), TensorSpec("half", "float16", (1,)), TensorSpec("ids", "int64", (1,))
    )
    assert [spec.largest for spec in found.limited(1e9)] == [1e9, 65504.0, None]
    assert found.limited(inf) == found.inputs


def test_data_is_taken_by_name_where_names_are_those_of_the_examples() -> None:
    examples = {"a": torch.zeros(1, 2), "b": torch.zeros(1, 2, dtype=torch.int64)}
    ones, twos = torch.ones(3, 2), 2 * torch.ones(3, 2)
    for data in ({"b": twos, "a": ones}, {"x": ones, "y": twos}, (ones, twos)):
        first, second = in_order(data, examples)
        assert torch.equal(first, ones)
        assert torch.equal(second, twos.long())
        assert second.dtype == torch.int64


def test_an_answer_without_any_value_is_no_answer_of_nan_alone() -> None:
    given = replace(asked(ABSOLUTE, 1.0), expected=(torch.zeros(1, 0),))
    _check_numbers([given], Exported(ABSOLUTE, {}))
    with pytest.raises(ExportError, match="every answer"):
        _check_numbers([replace(given, expected=(torch.full((1, 1), nan),))], Exported(ABSOLUTE, {}))


def test_a_check_of_numbers_takes_no_copy_of_a_row() -> None:
    wire = WireTensor(TensorSpec("x", "float32", (3, 224, 224), largest=1e30))
    row = np.zeros((3, 224, 224), np.float32)
    row.flags.writeable = False
    wire.check((row,))
    with pytest.raises(InvalidRequest, match=r"from nan to nan: they must be numbers from -1e\+30 to 1e\+30"):
        wire.check((np.full((3, 224, 224), np.nan, np.float32),))


def test_a_stage_on_openvino_has_a_twin_that_computes_whole_numbers_too() -> None:
    if BACKENDS["openvino"].unavailable() is not None:
        pytest.skip("needs OpenVINO")
    module = Does(lambda net, ids: net.layer(net.words(ids % 7).sum(1)))
    exported = export(module, (IDS,))
    stage = compile_graph(exported.graph, exported.weights, backend="openvino", threads=1)
    torch.testing.assert_close(stage.twin()(IDS)[0], run_module(module, (IDS,))[0])  # type: ignore[attr-defined]
