"""Splits whole numbers off a graph for a compiler that computes them otherwise: torch computes these first.

OpenVINO has 64-bit numbers in 32 bits, and adds, divides and compares others in floating point or with saturation.
What it gets right: tables looked up at places that are there, bool, and small numbers as floating-point ones.
"""

from collections.abc import Mapping

from torch import Tensor

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.cut import batch_only, piece_of
from latebind.program.graph import Graph, Node, Value, Weight
from latebind.program.ranges import Interval, Ranges, find_limits, is_bounded, whole_range
from latebind.program.simplify import drop_dead_nodes

LOOKED_UP = ("aten.embedding.default",)
CAST = "aten._to_copy.default"
EXACT = frozenset({"bool", "uint8", "int8", "int16"})  # as floating-point numbers
IN_32_BITS = Interval(-(1 << 31), (1 << 31) - 1)


def split_whole_numbers(graph: Graph, weights: Mapping[str, Tensor]) -> tuple[Graph | None, Graph]:
    """Return what torch should compute first, None if nothing, and the rest, which takes what that returns.

    An input that nothing reads is not passed on: OpenVINO would not know it. The rest reads whole numbers only in 32
    bits. Raises `ExportError` where it would need others beside floating-point numbers, and where it would compute an
    index or a divisor of these: it has its own result for those that are too large, and writes anywhere.
    """
    types = graph.types()
    cheap = batch_only(graph)
    ranges = Ranges(graph, weights)
    ranges.find(find_limits(graph, weights).allowed)
    whole = {spec.name for spec in graph.inputs if whole_range(spec.dtype) is not None}
    ahead: list[Node] = []
    for node in graph.nodes:
        values = [value for value in node.values() if value not in cheap]
        if node.name in cheap or not values or not all(value in whole for value in values) or node.type is None:
            continue
        if _left(node, ranges, types[values[0]].dtype) or node.type.row is None:
            continue
        ahead.append(node)
        if whole_range(node.type.dtype) is not None:
            whole.add(node.name)
    first, rest = _parts(graph, ahead, cheap)
    read = {value for node in rest.nodes if node.name not in cheap for value in node.values()}
    for spec in rest.inputs:
        found = ranges.of(Value(spec.name))
        if found is not None and not found.within(IN_32_BITS) and spec.name in read:
            raise ExportError(f"{spec.name!r} has whole numbers beyond 32 bits, which it computes with wrongly")
    if (place := _unsure_index(rest, weights)) is not None:
        raise ExportError(f"{place!r} takes an index or a divisor that is computed from floating-point numbers")
    return (None, graph) if rest.inputs == graph.inputs else (first, rest)


def _unsure_index(graph: Graph, weights: Mapping[str, Tensor]) -> str | None:
    """Return a node with an index or divisor that is made of floating-point numbers, and not bounded behind that."""
    unsure = {spec.name for spec in graph.inputs if whole_range(spec.dtype) is None}
    ranges = Ranges(graph, weights)
    for node in graph.nodes:  # what no input is part of is a constant
        if not unsure.isdisjoint(node.values()) and not is_bounded(ranges, node):
            unsure.add(node.name)
    found = (each for each in ranges.demands() if isinstance(each.index, Value) and each.index.name in unsure)
    return next((demand.node for demand in found), None)


def _left(node: Node, ranges: Ranges, dtype: str) -> bool:
    """Return whether the compiler computes a node of whole numbers as torch does."""
    if node.op in LOOKED_UP:
        place = ranges.of(node.args[1])
        return isinstance(node.args[0], Weight) and place is not None and place.within(IN_32_BITS)
    assert node.type is not None
    return node.op == CAST and dtype in EXACT and node.type.dtype == "float32"


def _parts(graph: Graph, ahead: list[Node], cheap: frozenset[str]) -> tuple[Graph, Graph]:
    """Return the graph of the nodes `ahead`, and that of the others, with what passes between them."""
    made = {node.name for node in ahead}
    sizes = [node for node in graph.nodes if node.name in cheap]
    others = [node for node in graph.nodes if node.name not in made and node.name not in cheap]
    read = {value for node in others for value in node.values()} | {value for _, value in graph.outputs}
    passed = [node for node in ahead if node.name in read]
    kept = [spec for spec in graph.inputs if spec.name in read]
    if not kept and not passed:  # only the batch size is read
        kept = [graph.inputs[0]]
    outputs = (*(spec.name for spec in kept), *(node.name for node in passed))
    first = Graph(graph.inputs, (*sizes, *ahead), tuple((name, name) for name in outputs))
    specs = (*kept, *(TensorSpec(node.name, node.type.dtype, node.type.row or ()) for node in passed if node.type))
    return drop_dead_nodes(first), piece_of(specs, others, sizes, graph.outputs)
