"""Which whole numbers of a graph torch computes before a compiler that has them otherwise."""

import pytest

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value
from latebind.program.whole_numbers import split_whole_numbers


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
    first, rest = split_whole_numbers(graph, {})
    if dtype in {"int32", "int64"}:
        assert first is not None
        assert (first.inputs, rest.inputs) == (graph.inputs, (row("made", "float32"),))
    else:
        assert (first, rest) == (None, graph)


def test_large_whole_numbers_that_only_the_compiler_could_compute_with_are_refused() -> None:
    def split(dtype: str) -> tuple[Graph | None, Graph]:
        inputs, args = (row("x", "float32"), row("ids", dtype)), (Value("x"), Value("ids"))
        return split_whole_numbers(graph_of(*inputs, op="aten.mul.Tensor", args=args), {})

    assert split("int32")[0] is None
    with pytest.raises(ExportError, match="'ids' has whole numbers beyond 32 bits"):
        split("int64")


def test_a_graph_that_reads_only_how_many_rows_there_are_keeps_an_input() -> None:
    graph = graph_of(row("ids", "int64"), op="aten.full.default", args=((Value("size"), 4), 1.0))
    assert split_whole_numbers(graph, {}) == (None, graph)


@pytest.mark.parametrize(
    ("bound", "refused"),
    [
        (("aten.remainder.Scalar", (Value("whole"), 4)), True),
        (("aten.abs.default", (Value("whole"),)), True),
        (("aten.clamp.default", (Value("whole"), 0)), True),
        (("aten.clamp.default", (Value("whole"), 0, 3)), False),
        (("aten.clamp.Tensor", (Value("whole"), Value("whole"), Value("whole"))), True),
        (("getitem", (Value("parts"), 1)), True),
        (("getitem", (Value("sorted"), 1)), False),
        (("aten.argmax.default", (Value("x"), 1, True)), False),
    ],
)
def test_an_index_that_only_the_compiler_could_compute_of_floating_point_numbers_is_refused_unless_bounded(
    bound: tuple[str, tuple[Argument, ...]], refused: bool
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
    if refused:
        with pytest.raises(ExportError, match="'made' takes an index or a divisor that is computed from floating"):
            split_whole_numbers(graph, {})
    else:
        assert split_whole_numbers(graph, {}) == (None, graph)
