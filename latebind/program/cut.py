"""Where a graph can be cut, and cutting it. A cut is a point where a single activation is all that the rest needs.

Weights do not count. Neither does what follows from the batch size alone (such as a zero state of B rows): it is
computed again behind the cut, from dimension 0 of the activation.

A network that reads texts asks in every block which words are padding, so nowhere is one activation all that the rest
needs. If what is needed beside the activation follows from something small, that is appended to the activation's own
numbers, in its dtype (true and false as 1 and 0), and the rest is recomputed from it behind the cut: a `Carry`. This is
not for large values, such as a skip connection over several blocks.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod

from latebind.domain.model import ITEM_BYTES, TensorSpec
from latebind.program.graph import Constant, Graph, Node, TensorType, Value
from latebind.program.operators import SYM_SIZE, VIEW, is_pointwise

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


TO = "aten._to_copy.default"
MAX_SHARE = 1 / 8  # the most that may be carried, as a share of the activation's numbers
CHEAP_OPERATORS = frozenset(  # operators that cost next to nothing to repeat, as pointwise ones do
    f"aten.{name}"
    for name in (
        "_to_copy.default",
        "clone.default",
        "expand.default",
        "index.Tensor",
        "permute.default",
        "select.int",
        "slice.Tensor",
        "squeeze.dim",
        "squeeze.dims",
        "unsqueeze.default",
        "view.default",
    )
)


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
    return tuple(_CarryFinder(graph).find())


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
                found.append(replace(nodes[name].rename_values(now), name=_recomputed_name(name, carry)))
                now[name] = _recomputed_name(name, carry)
    return Graph(graph.inputs, tuple(found), tuple((name, now.get(value, value)) for name, value in graph.outputs))


class _CarryFinder:
    """Finds the carries of one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._cheap = batch_only(graph)
        self._types = graph.types()
        self._nodes = {node.name: node for node in graph.nodes}

    def find(self) -> Iterator[Carry]:
        """Yield them in order."""
        for position, live in live_behind(self._graph):
            main = self._graph.nodes[position].name
            if len(live) < 2 or main not in live or not self._is_activation(main):
                continue
            if is_pointwise(next_node(self._graph, position, self._cheap).op):
                continue
            carry = self._carry_at(main, live - {main})
            if carry is not None:
                yield carry

    def _carry_at(self, main: str, beside: frozenset[str]) -> Carry | None:
        carried: set[str] = set()
        recomputed: set[str] = set()
        for value in beside:
            source, path = self._source(value, self._types[main].dtype)
            if not source:
                return None
            carried.add(source)
            recomputed.update(path)
        if sum(self._numbers(name) for name in carried) > MAX_SHARE * self._numbers(main):
            return None
        order = [node.name for node in self._graph.nodes if node.name in recomputed - carried]
        return Carry(main, tuple(sorted(carried)), tuple(order))

    def _source(self, value: str, dtype: str) -> tuple[str, list[str]]:
        """Return the smallest value from which `value` can be recomputed cheaply, and the nodes from there to it."""
        best, path = "", []
        passed: list[str] = []
        while True:
            if self._can_be_carried(value, dtype) and (not best or self._numbers(value) <= self._numbers(best)):
                best, path = value, list(passed)
            node = self._nodes.get(value)
            if node is None or not (node.op in CHEAP_OPERATORS or is_pointwise(node.op)):
                return best, path
            reads = {name for name in node.values() if name not in self._cheap}
            if len(reads) != 1:
                return best, path
            passed.append(value)
            (value,) = reads

    def _can_be_carried(self, name: str, dtype: str) -> bool:
        found = self._types.get(name)
        return found is not None and found.row is not None and found.dtype in ("bool", dtype)

    def _is_activation(self, name: str) -> bool:
        found = self._types.get(name)
        return found is not None and bool(found.row) and found.dtype in ("float16", "float32", "float64")

    def _numbers(self, name: str) -> int:
        return prod(self._types[name].row or ())


def _packed(carry: Carry, types: Mapping[str, TensorType], now: dict[str, str]) -> Iterator[Node]:
    """Yield the nodes that join the activation with what it carries, then those that take them apart.

    Updates `now` with the new names.
    """
    main = types[carry.main]
    row = main.row or ()
    along = all(types[name].row == row[:-1] for name in carry.carried)  # one more number a word, on the last axis
    axis = len(row) if along else 1
    wide = (*row[:-1], 1) if along else None
    parts, width = [], row[-1] if along else prod(row)
    for name in (carry.main, *carry.carried):
        source = now.get(name, name)
        if types[name].dtype != main.dtype:
            cast = (("dtype", Constant("dtype", main.dtype)),)
            shape = types[name].shape
            yield Node(f"{name}.as.{carry.main}", TO, (Value(source),), cast, TensorType(main.dtype, shape))
            source = f"{name}.as.{carry.main}"
        if name != carry.main or not along:
            shape = wide if wide is not None else (prod(types[name].row or ()),)
            yield _view(f"{name}.for.{carry.main}", source, main.dtype, shape)
            source = f"{name}.for.{carry.main}"
        parts.append((name, source))
    widths = [width, *(1 if along else prod(types[name].row or ()) for name in carry.carried)]
    whole = (*row[:-1], sum(widths)) if along else (sum(widths),)
    sources = tuple(Value(source) for _, source in parts)
    yield Node(carry.name, "aten.cat.default", (sources, axis), (), TensorType(main.dtype, (None, *whole)))
    yield from _unpacked(carry, types, now, axis, whole, widths)


def _unpacked(
    carry: Carry,
    types: Mapping[str, TensorType],
    now: dict[str, str],
    axis: int,
    whole: tuple[int, ...],
    widths: list[int],
) -> Iterator[Node]:
    begin, dtype = 0, types[carry.main].dtype
    for name, width in zip((carry.main, *carry.carried), widths, strict=True):
        kind = types[name]
        part, shape = f"{name}.of.{carry.main}", (*whole[: axis - 1], width)
        cut = (Value(carry.name), axis, begin, begin + width)
        yield Node(part, "aten.slice.Tensor", cut, (), TensorType(dtype, (None, *shape)))
        if shape != kind.row:
            yield _view(f"{name}.back.{carry.main}", part, dtype, kind.row or ())
            part = f"{name}.back.{carry.main}"
        if kind.dtype != dtype:
            source, part = part, _recomputed_name(name, carry)
            yield Node(part, "aten.ne.Scalar", (Value(source), 0), (), TensorType(kind.dtype, kind.shape))
        now[name] = part
        begin += width


def _view(name: str, source: str, dtype: str, row: tuple[int, ...]) -> Node:
    return Node(name, VIEW, (Value(source), (-1, *row)), (), TensorType(dtype, (None, *row)))


def _recomputed_name(name: str, carry: Carry) -> str:
    return f"{name}.at.{carry.main}"


NEGLIGIBLE = 0.05  # a piece with less than this share of a stage's minimum does not begin a stage


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
