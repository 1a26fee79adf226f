"""Makes cut points where a small value, such as a mask, is needed beside the activation: the activation carries it.

A network that reads texts asks in every block which words are padding, so nowhere is one activation all that the rest
needs. If what is needed beside the activation follows from something small, that is appended to the activation's own
numbers, in its dtype (true and false as 1 and 0), and the rest is recomputed from it behind the cut. This is not for
large values, such as a skip connection over several blocks.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod

from latebind.program.cut import batch_only, live_behind, next_node
from latebind.program.graph import Constant, Graph, Node, TensorType, Value
from latebind.program.operators import VIEW, is_pointwise

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
