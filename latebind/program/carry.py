"""Cuts where a mask is needed beside the activation: it is carried in it. Not for what is large, as a skip over blocks.

A network that reads texts asks in every block which words count, so that nowhere is one activation all that the rest
needs. Where what is needed beside it follows from something small, that goes along behind the activation's own
numbers, in its type (true and false as 1 and 0, which every type has), and the rest is made of it again.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import replace as changed
from math import prod

from latebind.program.cut import batch_only, live_behind, next_node
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, replace
from latebind.program.operators import VIEW, is_pointwise

TO = "aten._to_copy.default"
MOST = 1 / 8  # what is carried has at most this share of the activation's numbers
AGAIN = frozenset(  # beside pointwise ones, operators that cost next to nothing to repeat
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
class Load:
    """What the activation `main` carries: the values `small`, and the nodes to run `again` that follow from those."""

    main: str
    small: tuple[str, ...]
    again: tuple[str, ...]

    @property
    def name(self) -> str:
        """What the activation is called with all that it carries: where to cut."""
        return f"{self.main}.carried"


def loads(graph: Graph) -> tuple[Load, ...]:
    """Return where the graph can be cut if the activation carries something, in the order of its nodes.

    Only behind nodes that are not followed by a pointwise one, at which a compiler would lose a fusion.
    """
    return tuple(_Loads(graph).find())


def carried(graph: Graph, wanted: Collection[Load]) -> Graph:
    """Return a graph that computes the same and can be cut behind the `name` of each of the `wanted` loads."""
    types = _types(graph)
    nodes = {node.name: node for node in graph.nodes}
    by_main = {load.main: load for load in wanted}
    now: dict[str, str] = {}  # what a value of the graph is called from here on
    found: list[Node] = []
    for node in graph.nodes:
        found.append(_renamed(node, now))
        if node.name in by_main:
            load = by_main[node.name]
            found += _packed(load, types, now)
            for name in load.again:
                found.append(changed(_renamed(nodes[name], now), name=_at(name, load)))
                now[name] = _at(name, load)
    return Graph(graph.inputs, tuple(found), tuple((name, now.get(value, value)) for name, value in graph.outputs))


class _Loads:
    """Finds them in one graph."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._cheap = batch_only(graph)
        self._types = _types(graph)
        self._nodes = {node.name: node for node in graph.nodes}

    def find(self) -> Iterator[Load]:
        """Yield them in order."""
        for position, live in live_behind(self._graph):
            main = self._graph.nodes[position].name
            if len(live) < 2 or main not in live or not self._is_activation(main):
                continue
            if is_pointwise(next_node(self._graph, position, self._cheap).op):
                continue
            load = self._load(main, live - {main})
            if load is not None:
                yield load

    def _load(self, main: str, beside: frozenset[str]) -> Load | None:
        small: set[str] = set()
        again: set[str] = set()
        for value in beside:
            source, path = self._source(value, self._types[main].dtype)
            if not source:
                return None
            small.add(source)
            again.update(path)
        if sum(self._numbers(name) for name in small) > MOST * self._numbers(main):
            return None
        order = [node.name for node in self._graph.nodes if node.name in again - small]
        return Load(main, tuple(sorted(small)), tuple(order))

    def _source(self, value: str, dtype: str) -> tuple[str, list[str]]:
        """Return the smallest value that `value` follows from at no cost, and the nodes from there to it."""
        best, path = "", []
        passed: list[str] = []
        while True:
            if self._can_be_carried(value, dtype) and (not best or self._numbers(value) <= self._numbers(best)):
                best, path = value, list(passed)
            node = self._nodes.get(value)
            if node is None or not (node.op in AGAIN or is_pointwise(node.op)):
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


def _packed(load: Load, types: Mapping[str, TensorType], now: dict[str, str]) -> Iterator[Node]:
    """Yield the nodes that join what is carried to the activation, then those that take it apart; minds it in `now`."""
    main = types[load.main]
    row = main.row or ()
    along = all(types[name].row == row[:-1] for name in load.small)  # as one more number for each word
    axis = len(row) if along else 1
    wide = (*row[:-1], 1) if along else None
    parts, width = [], row[-1] if along else prod(row)
    for name in (load.main, *load.small):
        source = now.get(name, name)
        if types[name].dtype != main.dtype:
            cast = (("dtype", Constant("dtype", main.dtype)),)
            shape = types[name].shape
            yield Node(f"{name}.as.{load.main}", TO, (Value(source),), cast, TensorType(main.dtype, shape))
            source = f"{name}.as.{load.main}"
        if name != load.main or not along:
            shape = wide if wide is not None else (prod(types[name].row or ()),)
            yield _view(f"{name}.for.{load.main}", source, main.dtype, shape)
            source = f"{name}.for.{load.main}"
        parts.append((name, source))
    widths = [width, *(1 if along else prod(types[name].row or ()) for name in load.small)]
    whole = (*row[:-1], sum(widths)) if along else (sum(widths),)
    sources = tuple(Value(source) for _, source in parts)
    yield Node(load.name, "aten.cat.default", (sources, axis), (), TensorType(main.dtype, (None, *whole)))
    yield from _unpacked(load, types, now, axis, whole, widths)


def _unpacked(
    load: Load,
    types: Mapping[str, TensorType],
    now: dict[str, str],
    axis: int,
    whole: tuple[int, ...],
    widths: list[int],
) -> Iterator[Node]:
    begin, dtype = 0, types[load.main].dtype
    for name, width in zip((load.main, *load.small), widths, strict=True):
        kind = types[name]
        part, shape = f"{name}.of.{load.main}", (*whole[: axis - 1], width)
        cut = (Value(load.name), axis, begin, begin + width)
        yield Node(part, "aten.slice.Tensor", cut, (), TensorType(dtype, (None, *shape)))
        if shape != kind.row:
            yield _view(f"{name}.back.{load.main}", part, dtype, kind.row or ())
            part = f"{name}.back.{load.main}"
        if kind.dtype != dtype:
            yield Node(_at(name, load), "aten.ne.Scalar", (Value(part), 0), (), TensorType(kind.dtype, kind.shape))
            part = _at(name, load)
        now[name] = part
        begin += width


def _view(name: str, source: str, dtype: str, row: tuple[int, ...]) -> Node:
    return Node(name, VIEW, (Value(source), (-1, *row)), (), TensorType(dtype, (None, *row)))


def _at(name: str, load: Load) -> str:
    return f"{name}.at.{load.main}"


def _types(graph: Graph) -> dict[str, TensorType]:
    types = {spec.name: TensorType(spec.dtype, (None, *spec.shape)) for spec in graph.inputs}
    return types | {node.name: node.type for node in graph.nodes if node.type is not None}


def _renamed(node: Node, now: Mapping[str, str]) -> Node:
    def change(argument: Argument) -> Argument:
        return Value(now.get(argument.name, argument.name)) if isinstance(argument, Value) else argument

    args = tuple(replace(argument, change) for argument in node.args)
    return changed(node, args=args, kwargs=tuple((key, replace(argument, change)) for key, argument in node.kwargs))
