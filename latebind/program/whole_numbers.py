"""Whole numbers of a graph: what is computed from them outside the compiler, and which ones an input may have.

OpenVINO computes 64-bit numbers in 32 bits, adds, divides and compares others in floating point or with saturation, and
reads and writes anywhere with an index out of range. So numpy (`numeric`) or torch computes what follows from whole
numbers alone, and an index out of range raises, as in the module.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from latebind.domain.model import TensorSpec
from latebind.domain.sizes import Size
from latebind.program.arrays import array_of, over_arrays
from latebind.program.cut import piece_of, size_only, size_read
from latebind.program.eager import in_eager
from latebind.program.graph import Argument, Graph, Node, Value, Weight
from latebind.program.numeric import Ahead, Within, computed, lacking

RAISED = (RuntimeError, TypeError, ValueError, IndexError)
CAST, LOOKUP = "aten._to_copy.default", "aten.embedding.default"
EXACT = frozenset({"bool", "uint8", "int8", "int16"})  # as floating-point numbers
IN_32_BITS = frozenset({*EXACT, "int32"})

# Operators that take an index along a dimension, one for each dimension, and those that divide.
SCATTERS = ("scatter", "scatter_add", "scatter_reduce")
BY_DIMENSION = ("gather", "index_select", "index_add", "index_copy", "index_fill", *SCATTERS)
BY_PLACE = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
DIVISIONS = ("remainder", "fmod", "floor_divide", "div")
# Operators that return values and their places, and the argument that names the dimension.
ORDERED = {"topk": 2, "max": 1, "min": 1, "cummax": 1, "cummin": 1, "median": 1, "sort": 1, "kthvalue": 2}
MOVED = frozenset({"view", "unsqueeze", "squeeze", "expand", "permute", "slice", "select", "clone", "_to_copy"})


def whole_range(dtype: str) -> range | None:
    """Return all numbers of a dtype such as "int64"; None if it is not one of whole numbers. Bool has 0 and 1."""
    if dtype == "bool":
        return range(2)
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_floating_point or kind.is_complex:
        return None
    limits = torch.iinfo(kind)
    return range(limits.min, limits.max + 1)


@dataclass(frozen=True, slots=True)
class Split:
    """A graph in two parts: `first` (None: nothing), and `rest`, for a compiler, which takes what `first` returns.

    `indices` are the inputs of `rest` that it uses as indices, with their valid ranges. `unsure` says where `rest`
    computes with whole numbers in a way that a compiler may get wrong, "" if nowhere.
    """

    first: Graph | None
    rest: Graph
    indices: dict[str, Within]
    unsure: str

    @property
    def checked(self) -> tuple[tuple[int, Within], ...]:
        """The positions of the inputs of `rest` that it uses as indices, with their valid ranges."""
        return tuple(
            (at, self.indices[one.name]) for at, one in enumerate(self.rest.inputs) if one.name in self.indices
        )

    @property
    def axes(self) -> dict[str, tuple[int, int]]:
        """Where the sizes of named dimensions are among the inputs of the whole graph."""
        return (self.rest if self.first is None else self.first).axes

    def ahead(self, weights: Mapping[str, Tensor]) -> Ahead | None:
        """Return a call from the inputs of the graph to those of `rest`; None if they are the same, unchecked.

        The call raises `IndexError` for an index out of range.
        """
        return ahead_of(self.first, self.checked, self.axes, weights)


def ahead_of(
    first: Graph | None,
    checked: Sequence[tuple[int, Within]],
    axes: Mapping[str, tuple[int, int]],
    weights: Mapping[str, Tensor],
) -> Ahead | None:
    """Return a call that computes `first` and checks indices, None for nothing; torch computes what numpy cannot."""
    if first is None:
        return Ahead(None, checked, axes) if checked else None
    own = {name: weights[name].clone() for name in first.weights()}  # their pages may be given back
    if lacking(first):
        return Ahead(over_arrays(in_eager(first, own), first.inputs), checked, axes)
    return Ahead(computed(first, {name: array_of(tensor) for name, tensor in own.items()}), checked, axes)


def split_whole_numbers(graph: Graph, weights: Mapping[str, Tensor]) -> Split:
    """Return the graph in two parts. An input that nothing reads is dropped: OpenVINO would not know it."""
    types, cheap = graph.types(), size_only(graph)
    whole = {spec.name for spec in graph.inputs if whole_range(spec.dtype) is not None}
    ahead: list[Node] = []
    for node in graph.nodes:
        values, kind = [value for value in node.values() if value not in cheap], node.type
        if node.name in cheap or not values or not whole.issuperset(values) or (kind is not None and kind.row is None):
            continue
        if kind is None or whole_range(kind.dtype) is not None:
            whole.add(node.name)
        elif node.op == CAST and kind.dtype == "float32" and types[values[0]].dtype in EXACT:
            continue
        elif node.op == LOOKUP and isinstance(node.args[0], Weight):
            continue  # rows looked up before would be in new memory, which has to be bound each time
        ahead.append(node)
    first, rest = _parts(graph, [node.name for node in ahead], cheap)
    indices, unsure = _indices(rest, weights, set(graph.axes))
    return Split(None, graph, indices, unsure) if rest.inputs == graph.inputs else Split(first, rest, indices, unsure)


def _parts(graph: Graph, ahead: Sequence[str], cheap: frozenset[str]) -> tuple[Graph, Graph]:
    """Return the graph of the nodes `ahead`, and that of the others, with the values passed between them."""
    types = graph.types()
    others = {node.name: node for node in graph.nodes if node.name not in cheap.union(ahead)}
    read = {value for node in others.values() for value in node.values()} | {value for _, value in graph.outputs}
    passed = [graph.spec(name, types[name]) for name in ahead if name in read and name in types]
    kept = {spec.name for spec in graph.inputs if spec.name in read}
    for node in piece_of(graph, (*graph.inputs, *passed), others, graph.outputs).nodes:
        size, there = size_read(node, types), [types[name].shape for name in (*kept, *(one.name for one in passed))]
        if size is not None and not any(size[0] in shape for shape in there):
            kept.update(node.values())  # only its size is read
    specs = (*(spec for spec in graph.inputs if spec.name in kept), *passed)
    first = piece_of(graph, graph.inputs, ahead, tuple((spec.name, spec.name) for spec in specs))
    return first.needed(), piece_of(graph, specs, others, graph.outputs)


def _indices(graph: Graph, weights: Mapping[str, Tensor], dims: set[str]) -> tuple[dict[str, Within], str]:
    """Return the inputs used as indices, with their valid ranges, and where another index or number is unsafe.

    Ranges may depend on the named dimensions `dims`, which the inputs have.
    """
    cheap, bounds = size_only(graph), _Bounds(graph, weights)
    inputs = {spec.name: spec for spec in graph.inputs if whole_range(spec.dtype) is not None}
    wide = {name for name, spec in inputs.items() if spec.dtype not in IN_32_BITS}
    found: dict[str, Within] = {}
    unsure: list[str] = []
    for node in graph.nodes:
        if divides(node):
            unsure.append(f"{node.name!r} divides whole numbers by what may be 0")
        places = dict(bounds.indices_of(node))
        for name, allowed in places.items():
            both = None if allowed is None or name not in inputs else _both(found.get(name, allowed), allowed, dims)
            if both is not None:
                found[name] = both
            elif name not in cheap and not bounds.are_within(name, allowed):
                unsure.append(f"{node.name!r} takes an index that is computed from floating-point numbers")
        for name in node.values():
            if name in wide and name not in places and node.name not in cheap:
                unsure.append(f"{name!r} has whole numbers beyond 32 bits, combined with floating-point ones")
    return found, "".join(unsure[:1])


def _both(one: Within, other: Within, dims: set[str]) -> Within | None:
    """Return the intersection of two ranges; None if it is not known."""
    if isinstance(one, range) and isinstance(other, range):
        return range(max(one.start, other.start), min(one.stop, other.stop))
    return one if one == other and one[1] in dims else None


def divides(node: Node) -> bool:
    """Return whether a node divides whole numbers by what may be 0: a compiled program ends the process there."""
    is_division = operation(node) in DIVISIONS and node.type is not None and whole_range(node.type.dtype) is not None
    return is_division and (not isinstance(node.args[1], int) or node.args[1] == 0)


def operation(node: Node) -> str:
    """Return an operator's name without its overload: "clamp" for "aten.clamp.Tensor"."""
    return node.op.removeprefix("aten.").partition(".")[0]


class _Bounds:
    """Ranges that hold for values of a graph whatever its inputs: those of clamps, argmax and the like."""

    def __init__(self, graph: Graph, weights: Mapping[str, Tensor]) -> None:
        self._types, self._weights = graph.types(), weights
        self._masks = {name for name, kind in self._types.items() if kind.dtype == "bool"}
        self._known: dict[str, Within] = {}
        nodes = {node.name: node for node in graph.nodes}
        for node in graph.nodes:
            name, args, size = operation(node), node.args, None
            source = args[0].name if args and isinstance(args[0], Value) else ""
            ends = [end for end in (*args[1:], *dict(node.kwargs).values()) if isinstance(end, int)]
            if name in MOVED and source in self._known:
                self._known[node.name] = self._known[source]
            elif name == "clamp" and len(ends) == 2:
                self._known[node.name] = range(ends[0], ends[1] + 1)
            elif name in {"argmax", "argmin"} and ends:
                size = self._size(args[0], ends[0])
            elif name == "getitem" and args[1] == 1 and source in nodes and operation(nodes[source]) in ORDERED:
                ordered = nodes[source]
                at = ORDERED[operation(ordered)]
                dimension = ordered.args[at] if len(ordered.args) > at else dict(ordered.kwargs).get("dim", -1)
                size = self._size(ordered.args[0], dimension)
            if size is not None:
                self._known[node.name] = _up_to(size)

    def are_within(self, name: str, allowed: Within | None) -> bool:
        """Return whether a value is certain to stay within these numbers."""
        known = self._known.get(name)
        if known is None or allowed is None:
            return False
        if isinstance(known, range) and isinstance(allowed, range):
            return known.start >= allowed.start and known.stop <= allowed.stop
        return known[0] == 0 and known[1:] == allowed[1:]  # 0 is within all that end with such a size

    def indices_of(self, node: Node) -> Iterator[tuple[str, Within | None]]:
        """Yield the values that a node uses as indices, and their valid ranges; None if not known."""
        name, args = operation(node), node.args
        indices: list[tuple[Argument, Argument, bool]] = []
        if name == "embedding":
            indices = [(args[1], 0, False)]
        elif name in BY_DIMENSION:
            indices = [(args[2], args[1], False)]
        elif name in BY_PLACE and isinstance(args[1], tuple):
            indices = [(index, place, True) for place, index in enumerate(args[1])]
        for index, dimension, negative in indices:
            if isinstance(index, Value) and index.name not in self._masks:  # a mask is as large as what it selects from
                size = self._size(args[0], dimension)
                yield index.name, None if size is None else _up_to(size, negative=negative)

    def _size(self, argument: Argument, dimension: Argument) -> Size | None:
        """Return a size of a value or weight; None if it is not known, because it differs from call to call."""
        shape: tuple[Size | None, ...] = ()
        if isinstance(argument, Value) and argument.name in self._types:
            shape = self._types[argument.name].shape
        elif isinstance(argument, Weight):
            shape = tuple(self._weights[argument.name].shape)
        if not isinstance(dimension, int) or not -len(shape) <= dimension < len(shape):
            return None
        size = shape[dimension]
        return None if size == -1 else size


def _up_to(size: Size, *, negative: bool = False) -> Within:
    """Return the valid indices below a size, from minus that size if `negative` ones are counted from the end."""
    if isinstance(size, int):
        return range(-size if negative else 0, size)
    return (f"-({size})" if negative else 0, size)


Raises = Callable[[Mapping[str, int]], bool]


def find_limits(graph: Graph, weights: Mapping[str, Tensor], raises: Raises | None = None) -> tuple[TensorSpec, ...]:
    """Return the inputs of a graph with the whole numbers for which it does not raise, such as the words of a table.

    They are tried: `raises` says whether a row raises whose inputs have these numbers in all places. By default it
    computes only what follows from whole numbers.
    """
    whole = {
        spec.name: numbers for spec in graph.inputs if (numbers := whole_range(spec.dtype)) and spec.dtype != "bool"
    }
    if not whole:
        return graph.inputs
    raises = raises or _raises_ahead(graph.whole, weights)
    bases = (dict.fromkeys(whole, number) for number in (0, 1))  # words may be counted from 1
    base = next((numbers for numbers in bases if not raises(numbers)), None)
    if base is None:
        return graph.inputs

    def last(name: str, end: int) -> int:
        """Return the number nearest to `end` for which nothing raises; those between are assumed not to raise."""
        if not raises({**base, name: end}):
            return end
        good, bad = base[name], end
        while abs(bad - good) > 1:
            middle = (good + bad) // 2
            good, bad = (good, middle) if raises({**base, name: middle}) else (middle, bad)
        return good

    def limited(spec: TensorSpec) -> TensorSpec:
        numbers = whole.get(spec.name)
        if numbers is None:
            return spec
        found = range(last(spec.name, numbers.start), last(spec.name, numbers.stop - 1) + 1)
        return spec if found == numbers else replace(spec, least=found.start, limit=found.stop)

    return tuple(map(limited, graph.inputs))


def _raises_ahead(graph: Graph, weights: Mapping[str, Tensor]) -> Raises:
    ahead = split_whole_numbers(graph, weights).ahead(weights)

    def raises(numbers: Mapping[str, int]) -> bool:
        if ahead is None:
            return False
        try:
            ahead(*map(array_of, filled(graph.inputs, numbers)))
        except RAISED:
            return True
        return False

    return raises


def filled(specs: Sequence[TensorSpec], numbers: Mapping[str, int]) -> tuple[Tensor, ...]:
    """Return one row for these inputs: the number of each that has one, else 0, in all places."""
    return tuple(
        torch.full((1, *spec.shape), numbers.get(spec.name, 0), dtype=getattr(torch, spec.dtype)) for spec in specs
    )
