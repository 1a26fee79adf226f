"""Which whole numbers the inputs of a graph may have, and which of them torch computes before a compiler."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.backends import compile_graph, twin
from latebind.program.export import export
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value
from latebind.program.whole_numbers import find_limits, split_whole_numbers
from tests.program.test_backends import usable

TABLE = torch.randn(20, 3)
IDS = torch.ones(2, 4, dtype=torch.int64)
LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1

Operation = Callable[[Tensor], Tensor]


class Does(nn.Module):
    """What a function does to ids."""

    def __init__(self, operation: Operation) -> None:
        super().__init__()
        self._operation = operation

    def forward(self, ids: Tensor) -> Tensor:
        return self._operation(ids)


def looked_up(ids: Tensor) -> Tensor:
    return nn.functional.embedding(ids, TABLE).sum(2)


def numbers(ids: Tensor) -> Tensor:
    return ids.float().cumsum(1)


def limits_of(operation: Operation) -> tuple[int, int] | None:
    """Return the least and the largest number that a module may get; None if it may get any."""
    exported = export(Does(operation), {"ids": IDS})
    (spec,) = find_limits(exported.graph, exported.weights)
    assert spec.unlimited() == exported.graph.inputs[0]
    return None if spec.limit is None else (spec.least, spec.limit - 1)


@pytest.mark.parametrize(
    ("operation", "limits"),
    [
        (lambda ids: torch.gather(numbers(ids), 1, ids), (0, 3)),
        (lambda ids: numbers(ids).scatter(1, ids, 1.0), (0, 3)),
        (lambda ids: TABLE[ids].sum(2), (-20, 19)),
        (looked_up, (0, 19)),
        (lambda ids: looked_up(ids - 1), (1, 20)),
        (lambda ids: looked_up(ids // 10), (0, 199)),
        (lambda ids: looked_up(ids.clamp(max=19)), (0, HIGHEST)),
        (lambda ids: looked_up(torch.where(ids >= 0, ids, 0)), (LOWEST, 19)),
        (lambda ids: looked_up(torch.where((ids >= 0) & (ids < 20), ids, 0)), None),
        (lambda ids: looked_up(ids % 20), None),
        (lambda ids: torch.gather(numbers(ids), 1, ids.argmax(1, keepdim=True)), None),
        (lambda ids: torch.gather(numbers(ids), 1, ids.topk(2, 1).indices), None),
        (lambda ids: 7 % ids, None),
    ],
)
def test_an_input_may_be_what_finds_something(operation: Operation, limits: tuple[int, int] | None) -> None:
    assert limits_of(operation) == limits


@pytest.mark.parametrize(
    "operation",
    [
        looked_up,
        lambda ids: torch.gather(numbers(ids), 1, ids),
        lambda ids: numbers(ids) * looked_up(ids * 3 - 2),
        lambda ids: numbers(ids) + (7 % ids).float(),
    ],
)
def test_openvino_raises_where_the_module_does_and_answers_as_it_elsewhere(operation: Operation) -> None:
    module = Does(operation)
    exported = export(module, {"ids": IDS})
    stage = compile_graph(exported.graph, exported.weights, backend=usable("openvino"), threads=1)
    for number in (1, 0, -1, 3, 4, 7, 20, -20, HIGHEST, LOWEST):
        row = torch.tensor([[1, 2, number, 1]])
        try:
            expected = module(row)
        except (IndexError, RuntimeError):
            with pytest.raises((IndexError, RuntimeError)):
                stage(row)
        else:
            torch.testing.assert_close(stage(row)[0], expected)
            torch.testing.assert_close(twin(stage)(row)[0], expected)


def graph_of(*inputs: TensorSpec, op: str, args: tuple[Argument, ...], dtype: str = "") -> Graph:
    """Return a graph of one node, which may read the size of the batch, `size`."""
    given = (("dtype", Constant("dtype", dtype)),) if dtype else ()
    node = Node("made", op, args, given, TensorType("float32", (None, 4)))
    size = Node("size", "aten.sym_size.int", (Value(inputs[0].name), 0))
    return Graph(inputs, (size, node), (("y", "made"),))


def row(name: str, dtype: str) -> TensorSpec:
    return TensorSpec(name, dtype, (4,))


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64"])
def test_whole_numbers_that_a_float_does_not_hold_become_floats_before_the_compiler(dtype: str) -> None:
    graph = graph_of(row("ids", dtype), op="aten._to_copy.default", args=(Value("ids"),), dtype="float32")
    parts = split_whole_numbers(graph, {})
    if dtype in {"int32", "int64"}:
        assert parts.first is not None
        assert (parts.first.inputs, parts.rest.inputs) == (graph.inputs, (row("made", "float32"),))
    else:
        assert (parts.first, parts.rest) == (None, graph)


@pytest.mark.parametrize(("dtype", "unsure"), [("int32", ""), ("int64", "'ids' has whole numbers beyond 32 bits")])
def test_large_whole_numbers_that_only_the_compiler_could_compute_with_are_unsure(dtype: str, unsure: str) -> None:
    inputs, args = (row("x", "float32"), row("ids", dtype)), (Value("x"), Value("ids"))
    found = split_whole_numbers(graph_of(*inputs, op="aten.mul.Tensor", args=args), {})
    assert found.unsure.partition(",")[0] == unsure


def test_a_graph_that_reads_only_how_many_rows_there_are_keeps_an_input() -> None:
    graph = graph_of(row("ids", "int64"), op="aten.full.default", args=((Value("size"), 4), 1.0))
    parts = split_whole_numbers(graph, {})
    assert (parts.first, parts.rest, parts.unsure) == (None, graph, "")


@pytest.mark.parametrize(
    ("bound", "unsure"),
    [
        (("aten.remainder.Scalar", (Value("whole"), 4)), True),
        (("aten.remainder.Tensor", (Value("whole"), Value("whole"))), True),
        (("aten.abs.default", (Value("whole"),)), True),
        (("aten.clamp.default", (Value("whole"), 0)), True),
        (("aten.clamp.default", (Value("whole"), 0, 4)), True),
        (("aten.clamp.default", (Value("whole"), 0, 3)), False),
        (("getitem", (Value("parts"), 1)), True),
        (("getitem", (Value("sorted"), 1)), False),
        (("aten.argmax.default", (Value("x"), 1, True)), False),
    ],
)
def test_an_index_that_only_the_compiler_could_compute_of_floating_point_numbers_must_be_bounded(
    bound: tuple[str, tuple[Argument, ...]], unsure: bool
) -> None:
    whole, (op, args) = TensorType("int64", (None, 4)), bound
    nodes = (
        Node("whole", "aten._to_copy.default", (Value("x"),), (("dtype", Constant("dtype", "int64")),), whole),
        Node("parts", "aten.split.Tensor", (Value("whole"), 4, 1)),
        Node("sorted", "aten.sort.default", (Value("x"), 1)),
        Node("place", op, args, (), whole),
        Node("made", "aten.gather.default", (Value("x"), 1, Value("place")), (), TensorType("float32", (None, 4))),
    )
    graph = Graph((row("x", "float32"),), nodes, (("y", "made"),))
    assert bool(split_whole_numbers(graph, {}).unsure) == unsure


@pytest.mark.parametrize("backend", ["openvino", "compile"])
def test_a_division_of_floats_made_whole_by_others_is_refused(backend: str) -> None:
    exported = export(Does(lambda x: x.long() // x.flip(1).long()), (torch.ones(2, 4),))
    with pytest.raises(ExportError, match="divides whole numbers by what may be 0"):
        compile_graph(exported.graph, exported.weights, backend=usable(backend), threads=1)
