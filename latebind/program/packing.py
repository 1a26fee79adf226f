"""Rows of different lengths without their padding: operators that work word by word get a matrix of all words.

Rows that share a batch are padded to the longest. A linear layer, which takes most of a Transformer's time, works as
well on a matrix of all words of all rows, `(words, D)`, which leaves the padding out. Only attention, and whatever
else looks at more than one word, gets the rows side by side again, `(B, L, D)`. There a place after a row's end has
the numbers of the row's last word, never another row's, and the model must ignore it. Whether it does is tried, as for
padding (`padding.may_share`).
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from latebind.domain.model import TensorSpec, is_floating
from latebind.program.arrays import Array
from latebind.program.graph import Argument, Graph, Node, TensorType, Value, Weight
from latebind.program.operators import VIEW, is_pointwise

if TYPE_CHECKING:
    from torch import Tensor

SIDE_BY_SIDE, BELOW = "packing.side_by_side", "packing.below"  # the further inputs of a graph
LINEAR, MATMUL, NORM, EMBEDDING = (
    f"aten.{name}.default" for name in ("linear", "matmul", "native_layer_norm", "embedding")
)
SPLITS = {"aten.split.Tensor": 2, "aten.split_with_sizes.default": 2}  # and which argument is the dimension
OF_A_WORD = {"aten.mean.dim": 1}  # over a word's numbers; which argument has the dimensions


def places(lengths: Sequence[int]) -> tuple[Array, Array]:
    """Return the two further inputs of a packed graph for rows of these lengths, int64.

    `(B, L)`: which word is at each place of the rows side by side. `(words,)`: the place of each word.
    """
    own = np.array(lengths)[:, None]
    columns = np.arange(max(lengths))
    first = own.cumsum(0) - own
    return first + np.minimum(columns, own - 1), np.flatnonzero(columns < own)


def places_of_full(rows: int, length: int) -> tuple[Array, Array]:
    """Return the same where all rows have one length."""
    every = np.arange(rows * length)
    return every.reshape(rows, length), every


def packed(graph: Graph, weights: Mapping[str, "Tensor"], given: Sequence[TensorSpec]) -> Graph | None:
    """Return an equivalent graph that also takes what `places` returns; None if that gains nothing.

    Inputs that are not `given` by a client or the stage before follow from whole numbers, as masks do.
    """
    if len(graph.dims) != 1:
        return None
    found = _Packing(graph, weights, {spec.name for spec in given})
    nodes = tuple(found.nodes())
    if not found.linears:
        return None
    length = graph.dims[0]
    side_by_side = TensorSpec(SIDE_BY_SIDE, "int64", (length.most,), sizes=(length.name,))
    return Graph((*graph.inputs, side_by_side, TensorSpec(BELOW, "int64", ())), nodes, graph.outputs, graph.dims)


class _Packing:
    """Goes through a graph once: after a linear layer, each node is packed that works word by word on packed values."""

    def __init__(self, graph: Graph, weights: Mapping[str, "Tensor"], given: Collection[str]) -> None:
        self.linears = 0
        self._graph, self._weights = graph, weights
        self._types = graph.types()
        self._length = graph.dims[0].name
        self._deep = self._find_deep(given)
        self._below: dict[str, str] = {}  # the packed form of each value that has one
        self._apart = {spec.name for spec in graph.inputs}  # values that exist side by side
        self._tuples: dict[str, Node] = {}

    def nodes(self) -> Iterator[Node]:
        """Yield the nodes of the packed graph."""
        for node in self._graph.nodes:
            if self._is_packed(node):
                yield from self._packed(node)
            else:
                for name in dict.fromkeys(node.values()):
                    yield from self._unpacked(name)
                self._apart.add(node.name)
                yield node
        for _, name in self._graph.outputs:
            yield from self._unpacked(name)

    def _find_deep(self, given: Collection[str]) -> frozenset[str]:
        """Return the values that describe words, and not which places count: the padding of the latter matters.

        They are what a table or a layer computes, what follows from that, and what the stage before passes on.
        """
        floating = {spec.name for spec in self._graph.inputs if is_floating(spec.dtype) and len(spec.shape) > 1}
        deep = floating.intersection(given)
        for node in self._graph.nodes:
            kind = node.type
            if kind is not None and (not is_floating(kind.dtype) or kind.shape[1:] == (self._length,)):
                continue
            if not deep.isdisjoint(node.values()) or any(self._weights[name].dim() > 1 for name in node.weights()):
                deep.add(node.name)
        return frozenset(deep)

    def _width(self, name: str) -> int | None:
        """Return how many numbers a value that describes words has for each of them; None for other values."""
        kind = self._types.get(name)
        if kind is None or name not in self._deep or len(kind.shape) != 3 or kind.shape[:2] != (None, self._length):
            return None
        width = kind.shape[2]
        return width if isinstance(width, int) and width > 0 else None

    def _is_packed(self, node: Node) -> bool:
        """Return whether a node works word by word, and is a linear layer or reads packed values."""
        op, args, source = node.op, node.args, node.args[0] if node.args else None
        first = source.name if isinstance(source, Value) else ""
        known, width = first in self._below, self._width(first)
        if op == "getitem":
            return first in self._tuples
        if op in {NORM, *SPLITS}:
            return (
                known and width is not None and (args[1] == (width,) if op == NORM else _is_last(*args[SPLITS[op] :]))
            )
        if self._width(node.name) is None:
            return False
        if op in {LINEAR, MATMUL}:
            weight = args[1]
            return width is not None and list(node.values()) == [first] and self._is_flat(weight, 2)
        if op in OF_A_WORD:
            return known and _is_last(args[1]) and args[2:3] == (True,)
        values = dict.fromkeys(node.values())
        wide = [name for name in values if self._width(name) is not None]
        others: list[Argument] = [*map(Weight, node.weights()), *(Value(name) for name in values if name not in wide)]
        flat = all(self._is_flat(other, 1) for other in others)
        return is_pointwise(op) and flat and any(name in self._below for name in wide)

    def _is_flat(self, argument: Argument, most: int) -> bool:
        """Return whether a weight or value has at most `most` dimensions, all of fixed size."""
        if isinstance(argument, Weight):
            return self._weights[argument.name].dim() <= most
        kind = self._types.get(argument.name) if isinstance(argument, Value) else None
        return kind is not None and len(kind.shape) <= most and all(isinstance(size, int) for size in kind.shape)

    def _packed(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that pack what a node reads, and then that node on packed values."""
        name = f"{node.name}.below"
        for value in dict.fromkeys(node.values()):
            if value not in self._below and self._width(value) is not None:
                yield from self._pack(value)
        made = node.rename_values(self._below)
        if node.op in SPLITS or node.op in OF_A_WORD:
            at = SPLITS.get(node.op, OF_A_WORD.get(node.op, 0))
            axis: Argument = (-1,) if node.op in OF_A_WORD else -1
            made = Node(node.name, node.op, (*made.args[:at], axis, *made.args[at + 1 :]), made.kwargs, node.type)
        if node.type is None:
            self._tuples[node.name] = node
        self.linears += node.op in {LINEAR, MATMUL}
        self._below[node.name] = name
        yield Node(name, made.op, made.args, made.kwargs, None if node.type is None else _below(node.type))

    def _pack(self, value: str) -> Iterator[Node]:
        """Yield the nodes that turn a value into a matrix of words."""
        kind, name = self._types[value], f"{value}.below"
        flat = _below(kind)
        yield Node(f"{value}.flat", VIEW, (Value(value), (-1, kind.shape[2])), (), flat)
        yield Node(name, "aten.index_select.default", (Value(f"{value}.flat"), 0, Value(BELOW)), (), flat)
        self._below[value] = name

    def _unpacked(self, value: str) -> Iterator[Node]:
        """Yield the node that lays a value's rows side by side, if it exists only packed."""
        if value in self._below and value not in self._apart and value not in self._tuples:
            self._apart.add(value)
            yield Node(value, EMBEDDING, (Value(self._below[value]), Value(SIDE_BY_SIDE)), (), self._types[value])


def _below(kind: TensorType) -> TensorType:
    return TensorType(kind.dtype, (None, *kind.shape[2:]))


def _is_last(axes: Argument = None) -> bool:
    """Return whether this is the last of three dimensions."""
    return axes in {-1, 2, (-1,), (2,)}
