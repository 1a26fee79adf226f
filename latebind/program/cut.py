"""Where a graph can be cut, and cutting it. A cut is a point where a single activation is all that the rest needs.

Weights do not count. Neither does what follows from the batch size alone (such as a zero state of B rows): it is
computed again behind the cut, from dimension 0 of the activation.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from latebind.domain.model import ITEM_BYTES, TensorSpec
from latebind.program.graph import Graph, Node, TensorType, Value
from latebind.program.operators import SYM_SIZE, is_pointwise

ENTRY = -1  # the cut before the first node: it makes an empty stage, behind which requests can leave


def cut_points(graph: Graph) -> tuple[int, ...]:
    """Return the positions `i` such that the graph can be cut behind `graph.nodes[i]`, ascending.

    The activation there is one tensor `(B, fixed sizes)`. The end of the graph is not a cut.
    """
    points = []
    for position, live in live_behind(graph):
        node = graph.nodes[position]
        if (
            live == {node.name}
            and node.type is not None
            and node.type.row is not None
            and node.type.dtype in ITEM_BYTES
        ):
            points.append(position)
    return tuple(points)


def live_behind(graph: Graph) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield each position before the end of the graph, with the values that are needed behind the node there.

    Nodes that follow from the batch size alone are skipped, and their values are not counted.
    """
    cheap = batch_only(graph)
    last = _last_readers(graph)
    live = {spec.name for spec in graph.inputs if spec.name in last}
    end = max((i for i, node in enumerate(graph.nodes) if node.name not in cheap), default=0)
    for position, node in enumerate(graph.nodes[:end]):
        if node.name in cheap:
            continue
        live = {name for name in live if last[name] > position}
        if node.name in last:
            live.add(node.name)
        yield position, frozenset(live)


def has_entry(graph: Graph) -> bool:
    """Return whether the graph can be cut at `ENTRY`: it takes one tensor."""
    return len(graph.inputs) == 1


def fusion_safe_points(graph: Graph, points: Sequence[int]) -> tuple[int, ...]:
    """Return those cut points that break no fusion of a compiler: the next operator is not a pointwise one."""
    cheap = batch_only(graph)
    return tuple(point for point in points if not is_pointwise(next_node(graph, point, cheap).op))


def split(graph: Graph, points: Sequence[int]) -> tuple[Graph, ...]:
    """Return the graph cut behind each of `points` (ascending, from `cut_points`), as a chain of one more graphs.

    The first takes the graph's inputs, the last returns its outputs. Between them passes one activation, named after
    the node that computes it. `ENTRY` may come first if `has_entry`.
    """
    cheap = batch_only(graph)
    pieces = []
    inputs, start = graph.inputs, 0
    if points and points[0] == ENTRY:
        (entry,) = graph.inputs
        pieces, points = [Graph(inputs, (), ((entry.name, entry.name),))], points[1:]
    for point in (*points, len(graph.nodes) - 1):
        nodes = tuple(node for node in graph.nodes[start : point + 1] if node.name not in cheap)
        whole = point == len(graph.nodes) - 1
        outputs = graph.outputs if whole else ((graph.nodes[point].name, graph.nodes[point].name),)
        pieces.append(Graph(inputs, _with_batch_values(graph, nodes, cheap, inputs[0].name, outputs), outputs))
        if not whole:
            inputs, start = (_spec(graph.nodes[point]),), point + 1
    return tuple(pieces)


def batch_only(graph: Graph) -> frozenset[str]:
    """Return the names of values that follow from the batch size alone, not from the contents of the inputs."""
    types = graph.types()
    found: set[str] = set()
    for node in graph.nodes:
        if _is_batch_size(node, types) or all(value in found for value in node.values()):
            found.add(node.name)
    return frozenset(found)


def _is_batch_size(node: Node, types: dict[str, TensorType]) -> bool:
    if node.op != SYM_SIZE or len(node.args) != 2 or node.args[1] != 0 or not isinstance(node.args[0], Value):
        return False
    source = types.get(node.args[0].name)
    return source is not None and source.shape[:1] == (None,)


def _last_readers(graph: Graph) -> dict[str, int]:
    """Return for each value the position of the last node that needs its content; outputs are needed to the end."""
    cheap = batch_only(graph)
    last: dict[str, int] = {}
    for position, node in enumerate(graph.nodes):
        if node.name not in cheap:
            last.update((value, position) for value in node.values() if value not in cheap)
    last.update((value, len(graph.nodes)) for _, value in graph.outputs)
    return last


def next_node(graph: Graph, point: int, cheap: frozenset[str]) -> Node:
    """Return the next node behind `point` that does not follow from the batch size alone."""
    return next(node for node in graph.nodes[point + 1 :] if node.name not in cheap)


def _spec(node: Node) -> TensorSpec:
    if node.type is None or node.type.row is None:
        raise ValueError(f"the graph cannot be cut behind {node.name!r}: take the points from cut_points")
    return TensorSpec(node.name, node.type.dtype, node.type.row)


def _with_batch_values(
    graph: Graph, nodes: tuple[Node, ...], cheap: frozenset[str], entry: str, outputs: tuple[tuple[str, str], ...]
) -> tuple[Node, ...]:
    """Return `nodes`, preceded by what they need that follows from the batch size, which is read off tensor `entry`."""
    wanted = {value for node in nodes for value in node.values() if value in cheap}
    wanted |= {value for _, value in outputs if value in cheap}
    again: list[Node] = []
    for node in reversed(graph.nodes):
        if node.name not in wanted:
            continue
        if node.op == SYM_SIZE:
            again.append(replace(node, args=(Value(entry), 0)))
        else:
            again.append(node)
            wanted.update(node.values())
    return (*reversed(again), *nodes)
