"""Where a graph can be cut, and cutting it. A cut is a point where a single activation is all that the rest needs.

Weights do not count. Neither does what follows from sizes alone (such as a zero state of B rows, or the positions of L
words): it is computed again behind the cut, from the sizes of the activation, which must include those needed.

A network that reads texts needs to know in every block which words are padding, so a single activation is nowhere
enough. If what is needed besides the activation follows from one number for each word, that is appended to the word's
own numbers, in their dtype (true and false as 1 and 0), and the rest is recomputed from it after the cut: a `Carry`.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from latebind.domain.model import ITEM_BYTES, TensorSpec
from latebind.domain.sizes import Size
from latebind.program.graph import Constant, Graph, Node, TensorType, Value
from latebind.program.operators import SYM_SIZE, aten, is_pointwise

ENTRY = -1  # the cut before the first node: it makes an empty stage, after which requests can leave
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
    """Return the positions `i` such that the graph can be cut after `graph.nodes[i]`, ascending.

    The activation there is one tensor `(B, sizes of a row)`. The end of the graph is not a cut.
    """
    points, lacking = [], _Lacking(graph)
    for position, live in live_behind(graph):
        node = graph.nodes[position]
        fits = node.type is not None and node.type.row is not None and node.type.dtype in ITEM_BYTES
        if fits and live == {node.name} and not lacking.behind(position):
            points.append(position)
    return tuple(points)


def live_behind(graph: Graph) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield each position before the end of the graph, with the values that are needed after the node there.

    Nodes that follow from sizes alone are skipped, and their values are not counted.
    """
    sizes = size_only(graph)
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
    return Graph(graph.inputs, (), ((taken.name, taken.name),), graph.dims)


def fusion_safe_points(graph: Graph, points: Sequence[int]) -> tuple[int, ...]:
    """Return the cut points that break no compiler's fusion: the next operator is not pointwise."""
    following = _following(graph)
    return tuple(point for point in points if not _is_fused(following[point].op))


def _is_fused(op: str) -> bool:
    """Return whether a compiler fuses an operator with the one before. A power begins a root mean square norm.

    T5 and Llama compute such norms in parts, at the beginning of each block.
    """
    return is_pointwise(op) and op != "aten.pow.Tensor_Scalar"


def split(graph: Graph, points: Sequence[int]) -> tuple[Graph, ...]:
    """Return the graph cut after each of `points` (ascending, from `cut_points`): a chain of one graph more.

    The first takes the graph's inputs, the last returns its outputs. Between them passes one activation, named after
    the node that computes it. `ENTRY` may come first if `has_entry`.
    """
    if not points:
        return (graph,)
    sizes, pieces = size_only(graph), list[Graph]()
    inputs, start = graph.inputs, 0
    if points and points[0] == ENTRY:
        pieces, points = [entry_of(graph)], points[1:]
    for point in points:
        node = graph.nodes[point]
        if node.type is None or node.type.row is None:
            raise ValueError(f"the graph cannot be cut after {node.name!r}: take the points from cut_points")
        nodes = {one.name for one in graph.nodes[start : point + 1]}.difference(sizes)
        pieces.append(piece_of(graph, inputs, nodes, ((node.name, node.name),)))
        inputs, start = (graph.spec(node.name, node.type),), point + 1
    nodes = {one.name for one in graph.nodes[start:]}.difference(sizes)
    return (*pieces, piece_of(graph, inputs, nodes, graph.outputs))


def piece_of(
    graph: Graph, inputs: tuple[TensorSpec, ...], names: Collection[str], outputs: tuple[tuple[str, str], ...]
) -> Graph:
    """Return the nodes of a graph with these names, and those they need that follow from sizes alone.

    A size of a tensor that is elsewhere is read off one of the `inputs`.
    """
    sizes, there = size_only(graph), {*names, *(spec.name for spec in inputs)}
    piece = Graph(inputs, (), outputs, graph.dims)
    types, given = graph.types(), [(name, kind.shape) for name, kind in piece.types().items()]
    wanted, found = {value for _, value in outputs}, list[Node]()
    for node in reversed(graph.nodes):
        if node.name not in names and not (node.name in wanted and node.name in sizes):
            continue
        read = size_read(node, types)
        if read is not None and not all(value in there or value in sizes for value in node.values()):
            (size,) = read
            name, axis = next((name, shape.index(size)) for name, shape in given if size in shape)
            found.append(replace(node, args=(Value(name), axis)))
        else:
            found.append(node)
            wanted.update(node.values())
    return replace(piece, nodes=tuple(reversed(found)))


class _Lacking:
    """Finds sizes that are read after a cut but that the activation there does not have."""

    def __init__(self, graph: Graph) -> None:
        self._nodes = graph.nodes
        sizes, types = size_only(graph), graph.types()
        places = {node.name: place for place, node in enumerate(graph.nodes)}
        last = {value: len(graph.nodes) for _, value in graph.outputs}  # where the content of something needs each
        for place, node in reversed(list(enumerate(graph.nodes))):
            end = last.get(node.name, -1) if node.name in sizes else place
            last.update((value, max(end, last.get(value, -1))) for value in node.values() if value in sizes)
        self._reads = [
            (read[0], places.get(source, -1), last.get(node.name, -1))
            for node in graph.nodes
            if (read := size_read(node, types)) is not None
            for source in node.values()
            if source not in sizes
        ]

    def behind(self, point: int) -> bool:
        """Return whether there are any after this cut point, whose activation is a tensor."""
        kind = self._nodes[point].type
        return kind is None or any(
            source <= point < last and size not in kind.shape for size, source, last in self._reads
        )


def size_read(node: Node, types: Mapping[str, TensorType]) -> tuple[Size | None] | None:
    """Return the size that a node reads off a tensor, (None,) for the batch; None if it does not read a size."""
    source = types.get(node.args[0].name) if node.op == SYM_SIZE and isinstance(node.args[0], Value) else None
    if source is None or not isinstance(node.args[1], int):
        return None
    size = source.shape[node.args[1]]
    return None if size == -1 else (size,)


def size_only(graph: Graph) -> frozenset[str]:
    """Return the names of values that follow from sizes alone, not from the contents of the inputs."""
    types = graph.types()
    found: set[str] = set()
    for node in graph.nodes:
        if size_read(node, types) is not None or all(value in found for value in node.values()):
            found.add(node.name)
    return frozenset(found)


def _following(graph: Graph) -> list[Node]:
    """Return for each position the next node after it that does not follow from sizes alone."""
    sizes, found = size_only(graph), list[Node]()
    following = graph.nodes[-1] if graph.nodes else None  # not used after the last one
    for node in reversed(graph.nodes):
        assert following is not None
        found.append(following)
        if node.name not in sizes:
            following = node
    return found[::-1]


@dataclass(frozen=True, slots=True)
class Carry:
    """What the activation `main` carries: the values `carried`. The nodes `recomputed` follow from those.

    `turned` ones, which are true or false, are carried negated: where an activation is padded with 0, they are true.
    """

    main: str
    carried: tuple[str, ...]
    recomputed: tuple[str, ...]
    turned: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the activation with everything that it carries: where to cut."""
        return f"{self.main}.carried"


def find_carries(graph: Graph) -> tuple[Carry, ...]:
    """Return where the graph can be cut if the activation carries something, in the order of its nodes.

    A node followed by a pointwise one is left out: cutting there would cost a compiler a fusion.
    """
    sizes, types, following, lacking = size_only(graph), graph.types(), _following(graph), _Lacking(graph)
    nodes = {node.name: node for node in graph.nodes}
    places = {node.name: place for place, node in enumerate(graph.nodes)}

    def source(value: str, main: TensorType) -> tuple[str, list[str]]:
        """Return the first value, one number a word, from which this one can be recomputed cheaply, and the nodes."""
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
        if lacking.behind(position):
            continue
        sources = [source(value, kind) for value in live - {main}]
        carried = {name for name, _ in sources}
        recomputed = {name for _, path in sources for name in path} - carried
        width = kind.row[-1] if kind.row else 0  # of a word; one number is carried for each of the `carried`
        if all(carried) and isinstance(width, int) and len(carried) <= MAX_SHARE * width:
            found.append(Carry(main, tuple(sorted(carried)), tuple(sorted(recomputed, key=places.__getitem__))))
    return tuple(found)


def with_carries(graph: Graph, wanted: Collection[Carry]) -> Graph:
    """Return an equivalent graph that can be cut after the `name` of each of the `wanted` carries."""
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
    outputs = tuple((name, now.get(value, value)) for name, value in graph.outputs)
    return replace(graph, nodes=tuple(found), outputs=outputs)


def _packed(carry: Carry, types: Mapping[str, TensorType], now: dict[str, str]) -> Iterator[Node]:
    """Yield the nodes that join the activation with what it carries, then those that separate them.

    Updates `now` with the new names.
    """
    main = types[carry.main]
    row, dtype = main.row or (), main.dtype
    (*words, width) = row
    assert isinstance(width, int)
    parts = [now.get(carry.main, carry.main)]
    for name in carry.carried:
        source = now.get(name, name)
        if name in carry.turned:
            given, source = source, f"{name}.not.{carry.main}"
            yield Node(source, "aten.logical_not.default", (Value(given),), (), types[name])
        if types[name].dtype != dtype:
            cast, source = source, f"{name}.as.{carry.main}"
            to = (("dtype", Constant("dtype", dtype)),)
            shape = types[name].shape
            yield Node(source, "aten._to_copy.default", (Value(cast),), to, TensorType(dtype, shape))
        wide, parts = f"{name}.for.{carry.main}", [*parts, f"{name}.for.{carry.main}"]
        yield Node(wide, "aten.unsqueeze.default", (Value(source), -1), (), TensorType(dtype, (None, *words, 1)))
    whole = TensorType(dtype, (None, *words, width + len(carry.carried)))
    yield Node(carry.name, "aten.cat.default", (tuple(map(Value, parts)), len(row)), (), whole)
    now[carry.main] = f"{carry.main}.of.{carry.main}"
    yield Node(now[carry.main], "aten.slice.Tensor", (Value(carry.name), len(row), 0, width), (), main)
    for place, name in enumerate(carry.carried, width):
        part, kind = f"{name}.of.{carry.main}", types[name]
        yield Node(part, "aten.select.int", (Value(carry.name), len(row), place), (), replace(kind, dtype=dtype))
        if kind.dtype != dtype:
            number, part = part, f"{name}.at.{carry.main}"
            back = "aten.eq.Scalar" if name in carry.turned else "aten.ne.Scalar"
            yield Node(part, back, (Value(number), 0), (), kind)
        now[name] = part


def join_by_bytes(points: Sequence[int], sizes: Sequence[int], least: int) -> tuple[int, ...]:
    """Return the cut points to keep so that every stage has weights of at least `least` bytes, if the model has.

    `points` are the n - 1 cuts between n pieces with weights of `sizes` bytes. A stage ends as soon as it has enough,
    but includes a following piece with hardly any weights (a norm). The remainder goes to the last stage.
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


@dataclass(frozen=True, slots=True)
class Carried:
    """What an activation carries: the numbers of a word after the first `width`, and which of these are `masks`.

    A mask is true or false for each word, and 0 for padding.
    """

    width: int
    every: tuple[int, ...]
    masks: tuple[int, ...]


def carried_in(graph: Graph) -> Carried | None:
    """Return what a stage's only input, an activation, carries; None for nothing."""
    (taken,) = graph.inputs
    last, width, places = len(taken.shape), 0, dict[str, int]()
    for node in graph.nodes:
        match node.op, node.args:
            case "aten.slice.Tensor", (Value(name), axis, 0, int(end)) if name == taken.name and axis == last:
                width = end
            case "aten.select.int", (Value(name), axis, int(place)) if name == taken.name and axis == last:
                places[node.name] = place
            case _ if taken.name in node.values() and size_read(node, graph.types()) is None:
                return None  # it is read as it is
    carried = [place for place in places.values() if place >= width]
    if not width or len(carried) != taken.shape[-1] - width:
        return None
    compared = {
        node.args[0].name
        for node in graph.nodes
        if node.op in {"aten.eq.Scalar", "aten.ne.Scalar"} and isinstance(node.args[0], Value) and node.args[1] == 0
    }
    masks = [place for name, place in places.items() if name in compared]
    return Carried(width, tuple(sorted(carried)), tuple(sorted(masks)))
