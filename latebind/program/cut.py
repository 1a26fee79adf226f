"""Where a graph can be cut, and cutting it. A cut is a point where a single activation is all that the rest needs.

Weights do not count. Neither does what follows from the batch size alone (such as a zero state of B rows): it is
computed again behind the cut, from dimension 0 of the activation.

A network that reads texts asks in every block which words are padding, so nowhere is one activation all that the rest
needs. If what is needed beside the activation follows from one number for each word, that is appended to the word's
own numbers, in their dtype (true and false as 1 and 0), and the rest is recomputed from it behind the cut: a `Carry`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

from latebind.domain.model import ITEM_BYTES, TensorSpec
from latebind.program.graph import Constant, Graph, Node, TensorType, Value
from latebind.program.operators import SYM_SIZE, aten, is_pointwise

ENTRY = -1  # the cut before the first node: it makes an empty stage, behind which requests can leave
MAX_SHARE = 1 / 8  # the most that may be carried, as a share of the activation's numbers
NEGLIGIBLE = 0.05  # a piece with less than this share of a stage's minimum does not begin a stage
# Operators that cost next to nothing to repeat, as pointwise ones do.
CHEAP_OPERATORS = aten(
    """
    _to_copy.default clone.default expand.default index.Tensor permute.default select.int slice.Tensor squeeze.dim
    squeeze.dims unsqueeze.default view.default
    """
)


def cut_points(graph: Graph) -> tuple[int, ...]:
    """Return the positions `i` such that the graph can be cut behind `graph.nodes[i]`, ascending.

    The activation there is one tensor `(B, fixed sizes)`. The end of the graph is not a cut.
    """
    points = []
    for position, live in live_behind(graph):
        node = graph.nodes[position]
        fits = node.type is not None and node.type.row is not None and node.type.dtype in ITEM_BYTES
        if fits and live == {node.name}:
            points.append(position)
    return tuple(points)


def live_behind(graph: Graph) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield each position before the end of the graph, with the values that are needed behind the node there.

    Nodes that follow from the batch size alone are skipped, and their values are not counted.
    """
    sizes = batch_only(graph)
    last: dict[str, int] = {}  # the position of the last node that needs the content of a value
    for position, node in enumerate(graph.nodes):
        if node.name not in sizes:
            last.update((value, position) for value in node.values() if value not in sizes)
    last.update((value, len(graph.nodes)) for _, value in graph.outputs)
    live = {spec.name for spec in graph.inputs if spec.name in last}
    end = max((i for i, node in enumerate(graph.nodes) if node.name not in sizes), default=0)
    for position, node in enumerate(graph.nodes[:end]):
        if node.name in sizes:
            continue
        live = {name for name in live if last[name] > position}
        if node.name in last:
            live.add(node.name)
        yield position, frozenset(live)


def has_entry(graph: Graph) -> bool:
    """Return whether the graph can be cut at `ENTRY`: it takes one tensor."""
    return len(graph.inputs) == 1


def entry_of(graph: Graph) -> Graph:
    """Return the empty stage before a graph that takes one tensor: it returns that."""
    (taken,) = graph.inputs
    return Graph(graph.inputs, (), ((taken.name, taken.name),))


def fusion_safe_points(graph: Graph, points: Sequence[int]) -> tuple[int, ...]:
    """Return those cut points that break no fusion of a compiler: the next operator is not a pointwise one."""
    following = _following(graph)
    return tuple(point for point in points if not _is_fused(following[point].op))


def _is_fused(op: str) -> bool:
    """Return whether a compiler fuses an operator with the one before. A power begins a norm by the root mean square.

    T5 and Llama compute such norms in parts, at the beginning of each block.
    """
    return is_pointwise(op) and op != "aten.pow.Tensor_Scalar"


def split(graph: Graph, points: Sequence[int]) -> tuple[Graph, ...]:
    """Return the graph cut behind each of `points` (ascending, from `cut_points`), as a chain of one more graphs.

    The first takes the graph's inputs, the last returns its outputs. Between them passes one activation, named after
    the node that computes it. `ENTRY` may come first if `has_entry`.
    """
    names = batch_only(graph)
    sizes = [node for node in graph.nodes if node.name in names]
    pieces = []
    inputs, start = graph.inputs, 0
    if points and points[0] == ENTRY:
        pieces, points = [entry_of(graph)], points[1:]
    for point in points:
        node = graph.nodes[point]
        if node.type is None or node.type.row is None:
            raise ValueError(f"the graph cannot be cut behind {node.name!r}: take the points from cut_points")
        nodes = [one for one in graph.nodes[start : point + 1] if one.name not in names]
        pieces.append(piece_of(inputs, nodes, sizes, ((node.name, node.name),)))
        inputs, start = (TensorSpec(node.name, node.type.dtype, node.type.row),), point + 1
    nodes = [one for one in graph.nodes[start:] if one.name not in names]
    return (*pieces, piece_of(inputs, nodes, sizes, graph.outputs))


def piece_of(
    inputs: tuple[TensorSpec, ...], nodes: list[Node], sizes: list[Node], outputs: tuple[tuple[str, str], ...]
) -> Graph:
    """Return a graph of the nodes, preceded by what they need of batch sizes, which are read off the first input."""
    wanted = {value for node in nodes for value in node.values()} | {value for _, value in outputs}
    again: list[Node] = []
    for node in reversed(sizes):
        if node.name in wanted and node.op == SYM_SIZE:
            again.append(replace(node, args=(Value(inputs[0].name), 0)))
        elif node.name in wanted:
            again.append(node)
            wanted.update(node.values())
    return Graph(inputs, (*reversed(again), *nodes), outputs)


def batch_only(graph: Graph) -> frozenset[str]:
    """Return the names of values that follow from the batch size alone, not from the contents of the inputs."""
    types = graph.types()
    found: set[str] = set()
    for node in graph.nodes:
        source = types.get(node.args[0].name) if node.args and isinstance(node.args[0], Value) else None
        is_size = node.op == SYM_SIZE and node.args[1:] == (0,) and source is not None and source.shape[:1] == (None,)
        if is_size or all(value in found for value in node.values()):
            found.add(node.name)
    return frozenset(found)


def _following(graph: Graph) -> list[Node]:
    """Return for each position the next node behind it that does not follow from the batch size alone."""
    sizes, found = batch_only(graph), list[Node]()
    following = graph.nodes[-1] if graph.nodes else None  # behind the last one nobody asks
    for node in reversed(graph.nodes):
        assert following is not None
        found.append(following)
        if node.name not in sizes:
            following = node
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Carry:
    """What the activation `main` carries: the values `carried`. The nodes `recomputed` follow from those."""

    main: str
    carried: tuple[str, ...]
    recomputed: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the activation with all that it carries: where to cut."""
        return f"{self.main}.carried"


def find_carries(graph: Graph) -> tuple[Carry, ...]:
    """Return where the graph can be cut if the activation carries something, in the order of its nodes.

    A node followed by a pointwise one is left out: cutting there would cost a compiler a fusion.
    """
    sizes, types, following = batch_only(graph), graph.types(), _following(graph)
    nodes = {node.name: node for node in graph.nodes}
    places = {node.name: place for place, node in enumerate(graph.nodes)}

    def source(value: str, main: TensorType) -> tuple[str, list[str]]:
        """Return the first value, one number a word, from which this one can be recomputed cheaply, and by what."""
        best, path, passed = "", list[str](), list[str]()
        while True:
            kind = types.get(value)
            if kind and main.row and kind.row == main.row[:-1] and kind.dtype in {"bool", main.dtype}:
                best, path = value, list(passed)
            node = nodes.get(value)
            reads = {name for name in node.values() if name not in sizes} if node is not None else set()
            if node is None or len(reads) != 1 or not (node.op in CHEAP_OPERATORS or is_pointwise(node.op)):
                return best, path
            passed.append(value)
            (value,) = reads

    found = []
    for position, live in live_behind(graph):
        main, kind = graph.nodes[position].name, graph.nodes[position].type
        activation = kind is not None and kind.row and kind.dtype in {"float16", "float32", "float64"}
        if kind is None or not activation or len(live) < 2 or main not in live or _is_fused(following[position].op):
            continue
        sources = [source(value, kind) for value in live - {main}]
        carried = {name for name, _ in sources}
        recomputed = {name for _, path in sources for name in path} - carried
        if all(carried) and sum(prod(types[name].row or ()) for name in carried) <= MAX_SHARE * prod(kind.row or ()):
            found.append(Carry(main, tuple(sorted(carried)), tuple(sorted(recomputed, key=places.__getitem__))))
    return tuple(found)


def with_carries(graph: Graph, wanted: Collection[Carry]) -> Graph:
    """Return an equivalent graph that can be cut behind the `name` of each of the `wanted` carries."""
    types = graph.types()
    nodes = {node.name: node for node in graph.nodes}
    by_main = {carry.main: carry for carry in wanted}
    now: dict[str, str] = {}  # the current name of each value that was packed or recomputed
    found: list[Node] = []
    for node in graph.nodes:
        found.append(node.rename_values(now))
        if node.name in by_main:
            carry = by_main[node.name]
            found += _packed(carry, types, now)
            for name in carry.recomputed:
                again = f"{name}.at.{carry.main}"
                found.append(replace(nodes[name].rename_values(now), name=again))
                now[name] = again
    return Graph(graph.inputs, tuple(found), tuple((name, now.get(value, value)) for name, value in graph.outputs))


def _packed(carry: Carry, types: Mapping[str, TensorType], now: dict[str, str]) -> Iterator[Node]:
    """Yield the nodes that join the activation with what it carries, then those that take them apart.

    Updates `now` with the new names.
    """
    main = types[carry.main]
    row, dtype = main.row or (), main.dtype
    parts = [now.get(carry.main, carry.main)]
    for name in carry.carried:
        source = now.get(name, name)
        if types[name].dtype != dtype:
            cast, source = source, f"{name}.as.{carry.main}"
            to = (("dtype", Constant("dtype", dtype)),)
            shape = types[name].shape
            yield Node(source, "aten._to_copy.default", (Value(cast),), to, TensorType(dtype, shape))
        wide, parts = f"{name}.for.{carry.main}", [*parts, f"{name}.for.{carry.main}"]
        yield _view(wide, source, dtype, (*row[:-1], 1))
    whole = TensorType(dtype, (None, *row[:-1], row[-1] + len(carry.carried)))
    yield Node(carry.name, "aten.cat.default", (tuple(map(Value, parts)), len(row)), (), whole)
    begin = 0
    for name, width in ((carry.main, row[-1]), *((name, 1) for name in carry.carried)):
        part, kind = f"{name}.of.{carry.main}", types[name]
        cut = (Value(carry.name), len(row), begin, begin + width)
        yield Node(part, "aten.slice.Tensor", cut, (), TensorType(dtype, (None, *row[:-1], width)))
        if name != carry.main:
            narrow, part = part, f"{name}.back.{carry.main}"
            yield _view(part, narrow, dtype, kind.row or ())
        if kind.dtype != dtype:
            number, part = part, f"{name}.at.{carry.main}"
            yield Node(part, "aten.ne.Scalar", (Value(number), 0), (), kind)
        now[name] = part
        begin += width


def _view(name: str, source: str, dtype: str, row: tuple[int, ...]) -> Node:
    return Node(name, "aten.view.default", (Value(source), (-1, *row)), (), TensorType(dtype, (None, *row)))


def join_by_bytes(points: Sequence[int], sizes: Sequence[int], least: int) -> tuple[int, ...]:
    """Return the cut points to keep so that every stage has weights of at least `least` bytes, if the model has.

    `points` are the n - 1 cuts between n pieces with weights of `sizes` bytes. A stage ends as soon as it has enough,
    but includes a following piece with hardly any weights (a norm). What is left at the end goes to the last stage.
    """
    kept: list[int] = []
    begun, left = 0, sum(sizes)
    for point, size, following in zip(points, sizes[:-1], sizes[1:], strict=True):
        begun, left = begun + size, left - size
        if begun >= least and left >= least and following >= least * NEGLIGIBLE:
            kept.append(point)
            begun = 0
    return tuple(kept)


def join_by_seconds(points: Sequence[int], seconds: Sequence[float], stages: int) -> tuple[int, ...]:
    """Return the cut points to keep so that there are at most `stages` stages of about the same time.

    `points` are the n - 1 cuts between n pieces that take `seconds`. Each kept point is the one nearest to where a
    stage should end.
    """
    ends = list(accumulate(seconds))
    if stages > len(points):
        return tuple(points)
    kept = {
        min(range(len(points)), key=lambda place: abs(ends[place] - ends[-1] * part / stages))
        for part in range(1, stages)
    }
    return tuple(points[place] for place in sorted(kept))
