"""Which whole numbers a graph may compute: an interval for each value, from those of the inputs (interval analysis).

It proves that an index stays within what it indexes and that a divisor is never 0. What it does not know may be any
number of its dtype, so it proves too little, never too much. `find_limits` turns that round: which whole numbers the
inputs may have, so that every index finds something. A table of 100 words has words 0 to 99; an input that is one less
than a word has 1 to 100.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from latebind.domain.model import TensorSpec
from latebind.program.graph import Argument, Graph, Node, Value, Weight

MOST_ROWS = 1 << 20  # in a batch


@dataclass(frozen=True, slots=True)
class Interval:
    """Whole numbers from `least` to `most`, both included."""

    least: int
    most: int

    def within(self, other: "Interval") -> bool:
        """Return whether each of these numbers is one of the other's."""
        return other.least <= self.least and self.most <= other.most


BOOLEAN = Interval(0, 1)


def whole_range(dtype: str) -> Interval | None:
    """Return all numbers of a dtype, as "int64"; None if it is not one of whole numbers or bool."""
    if dtype == "bool":
        return BOOLEAN
    kind: torch.dtype = getattr(torch, dtype)
    if kind.is_floating_point or kind.is_complex:
        return None
    limits = torch.iinfo(kind)
    return Interval(limits.min, limits.max)


@dataclass(frozen=True, slots=True)
class Demand:
    """A place of the graph that works only while `index`, a value or a number, is within `allowed`.

    Where that is None it must not be 0: it divides.
    """

    node: str
    index: Argument
    allowed: Interval | None

    def met(self, found: Interval | None) -> bool:
        """Return whether every number of this interval is fine."""
        if found is None:
            return False
        if self.allowed is None:
            return not found.least <= 0 <= found.most
        return found.within(self.allowed)


class Ranges:
    """The intervals of a graph: first `find`, then `of`."""

    def __init__(self, graph: Graph, weights: Mapping[str, Tensor]) -> None:
        self._graph = graph
        self._weights = weights
        self._types = graph.types()
        self._nodes = {node.name: node for node in graph.nodes}
        self._known: dict[str, Interval] = {}

    def find(self, inputs: Mapping[str, Interval], nodes: tuple[Node, ...] | None = None) -> dict[str, Interval]:
        """Return the interval of every value of whole numbers; inputs not named may be any number of their dtype.

        `nodes` are those to look at, in order (None: all).
        """
        self._known = {}
        for spec in self._graph.inputs:
            whole = whole_range(spec.dtype)
            if whole is not None:
                self._known[spec.name] = inputs.get(spec.name, whole)
        for node in self._graph.nodes if nodes is None else nodes:
            found = self._interval(node)
            if found is not None:
                self._known[node.name] = found
        return dict(self._known)

    def of(self, argument: Argument) -> Interval | None:
        """Return the interval of an argument after `find`; None if it is no whole number."""
        match argument:
            case bool() | int():
                return Interval(int(argument), int(argument))
            case Value(name):
                return self._known.get(name)
            case Weight(name):
                tensor = self._weights[name]
                if tensor.is_floating_point() or tensor.is_complex() or tensor.numel() == 0:
                    return None
                return Interval(int(tensor.min()), int(tensor.max()))
        return None

    def _interval(self, node: Node) -> Interval | None:
        """Return the interval of a node's result; None if it is not one tensor of whole numbers or a size."""
        name = _name(node)
        if node.type is None:
            return Interval(1, MOST_ROWS) if name == "sym_size" else None
        whole = whole_range(node.type.dtype)
        if whole is None or whole == BOOLEAN:
            return whole
        rule = _RULES.get(name)
        found = None if rule is None else rule(self, node)
        return found if found is not None and found.within(whole) else whole  # else it may wrap around

    def demands(self) -> tuple[Demand, ...]:
        """Return what the nodes of the graph demand of indices and divisors."""
        return tuple(demand for node in self._graph.nodes for demand in self._demands_of(node))

    def _demands_of(self, node: Node) -> Iterator[Demand]:
        name = _name(node)
        if name == "embedding":
            yield self._index(node, node.args[1], node.args[0], 0)
        elif name in BY_DIMENSION and isinstance(node.args[1], int):
            yield self._index(node, node.args[2], node.args[0], node.args[1])
        elif name in BY_PLACE and isinstance(node.args[1], tuple):
            for place, index in enumerate(node.args[1]):
                if index is not None:
                    yield self._index(node, index, node.args[0], place, negative=True)
        elif name in DIVISIONS and node.type is not None and whole_range(node.type.dtype) is not None:
            yield Demand(node.name, node.args[1], None)

    def _index(
        self, node: Node, index: Argument, source: Argument, dimension: int, *, negative: bool = False
    ) -> Demand:
        size = self.size(source, dimension) or 0  # nothing is known to be within a dimension that grows
        return Demand(node.name, index, Interval(-size if negative else 0, size - 1))

    def size(self, argument: Argument, dimension: int) -> int | None:
        """Return the size of a value or weight along a dimension; None if it grows with the batch."""
        shape: tuple[int | None, ...] = ()
        if isinstance(argument, Value) and argument.name in self._types:
            shape = self._types[argument.name].shape
        elif isinstance(argument, Weight):
            shape = tuple(self._weights[argument.name].shape)
        if not -len(shape) <= dimension < len(shape):
            return 1 if not shape else None
        size = shape[dimension]
        return size if size is not None and size >= 0 else None

    def source_of(self, node: Node) -> Node | None:
        """Return the node that makes the tuple of which this `getitem` takes a part."""
        first = node.args[0]
        return self._nodes.get(first.name) if isinstance(first, Value) else None

    def leading_to(self, values: set[str]) -> tuple[Node, ...]:
        """Return the nodes that these values depend on, in order."""
        wanted, found = set(values), []
        for node in reversed(self._graph.nodes):
            if node.name in wanted:
                found.append(node)
                wanted.update(node.values())
        return tuple(reversed(found))


def _name(node: Node) -> str:
    """Return an operator's name without its overload: "clamp" of "aten.clamp.Tensor"."""
    return node.op.removeprefix("aten.").partition(".")[0]


BY_DIMENSION = (
    "gather",
    "index_select",
    "index_add",
    "index_copy",
    "index_fill",
    "scatter",
    "scatter_add",
    "scatter_reduce",
)
BY_PLACE = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")
DIVISIONS = ("remainder", "fmod", "floor_divide", "div")
ORDERED = {"topk": 2, "max": 1, "min": 1, "cummax": 1, "cummin": 1, "median": 1, "sort": 1, "kthvalue": 2}
"""Operators that give values and their places, by the argument that names the dimension."""
BOUNDED = frozenset({"argmax", "argmin", "argsort", "sym_size", "full_like", "zeros_like", "ones_like"})


def is_bounded(ranges: Ranges, node: Node) -> bool:
    """Return whether whole numbers are within their interval whoever computes them, and whatever of.

    These are bool, sizes, places of what was ordered or is largest, and numbers with a least and a largest one.
    """
    name = _name(node)
    if name == "clamp":
        bounds = (*node.args[1:], *(value for _, value in node.kwargs))
        return sum(isinstance(bound, int | float) for bound in bounds) == 2
    if name == "getitem":
        source = ranges.source_of(node)
        return source is not None and _name(source) in ORDERED and node.args[1] == 1
    return name in BOUNDED or (node.type is not None and node.type.dtype == "bool")


Rule = Callable[[Ranges, Node], Interval | None]


def _union(ranges: Ranges, parts: Sequence[Argument]) -> Interval | None:
    """Return the smallest interval with those of all parts."""
    found = [part for part in map(ranges.of, parts) if part is not None]
    if not found or len(found) < len(parts):
        return None
    return Interval(min(part.least for part in found), max(part.most for part in found))


def _joined(ranges: Ranges, node: Node) -> Interval | None:
    parts = node.args[0]
    return _union(ranges, parts) if isinstance(parts, tuple) else None


def _padded(ranges: Ranges, node: Node) -> Interval | None:
    filled = node.args[2] if len(node.args) > 2 else 0
    return _union(ranges, (node.args[0], filled if isinstance(filled, int) else None))


def _number(_ranges: Ranges, node: Node) -> Interval | None:
    number = node.args[1] if "full" in node.op else node.args[0]
    return Interval(int(number), int(number)) if isinstance(number, int) else None


def _of_sides(rule: Callable[[Interval, Interval], Interval | None]) -> Rule:
    """Return the rule of an operator on two numbers, of which the second may be scaled by `alpha`."""

    def found(ranges: Ranges, node: Node) -> Interval | None:
        left, right = ranges.of(node.args[0]), ranges.of(node.args[1])
        scale = dict(node.kwargs).get("alpha", 1)
        if left is None or right is None or not isinstance(scale, int):
            return None
        return rule(left, _times(right, Interval(scale, scale)))

    return found


def _times(left: Interval, right: Interval) -> Interval:
    corners = [a * b for a in (left.least, left.most) for b in (right.least, right.most)]
    return Interval(min(corners), max(corners))


def _common_bits(left: Interval, right: Interval) -> Interval | None:
    """What `&` leaves of a number of 0 or more is 0 or more, and at most that number."""
    known = [side.most for side in (left, right) if side.least >= 0]
    return Interval(0, min(known)) if known else None


def _absolute(ranges: Ranges, node: Node) -> Interval | None:
    found = ranges.of(node.args[0])
    if found is None:
        return None
    ends = abs(found.least), abs(found.most)
    return Interval(0 if found.least <= 0 <= found.most else min(ends), max(ends))


def _remainder(ranges: Ranges, node: Node) -> Interval | None:
    """The remainder of `remainder` has the divisor's sign, that of `fmod` the dividend's."""
    left, right = ranges.of(node.args[0]), ranges.of(node.args[1])
    if left is None or right is None or right.least <= 0:
        return None
    if left.within(Interval(0, right.least - 1)):
        return left
    signed = "fmod" in node.op and left.least < 0
    return Interval(1 - right.most if signed else 0, right.most - 1)


def _quotient(ranges: Ranges, node: Node) -> Interval | None:
    left, right = ranges.of(node.args[0]), ranges.of(node.args[1])
    if left is None or right is None or right.least <= 0:
        return None
    floor = dict(node.kwargs).get("rounding_mode", "floor") == "floor"

    def divided(a: int, b: int) -> int:
        return a // b if floor else abs(a) // b * (1 if a >= 0 else -1)

    corners = [divided(a, b) for a in (left.least, left.most) for b in (right.least, right.most)]
    return Interval(min(corners), max(corners))


def _clamped(ranges: Ranges, node: Node) -> Interval | None:
    found = ranges.of(node.args[0])
    if found is None:
        return None
    named = dict(node.kwargs)
    least = ranges.of(node.args[1] if len(node.args) > 1 else named.get("min"))
    most = ranges.of(node.args[2] if len(node.args) > 2 else named.get("max"))
    low, high = found.least, found.most
    if least is not None:
        low, high = max(low, least.least), max(high, least.most)
    if most is not None:
        low, high = min(low, most.least), min(high, most.most)
    return Interval(low, high)


def _place_of_largest(ranges: Ranges, node: Node) -> Interval | None:
    dimension = node.args[1] if len(node.args) > 1 else None
    size = ranges.size(node.args[0], dimension) if isinstance(dimension, int) else None
    return Interval(0, size - 1) if size else None


def _part(ranges: Ranges, node: Node) -> Interval | None:
    """Return the interval of values (part 0) or places (part 1) of what was ordered along a dimension."""
    source = ranges.source_of(node)
    name = "" if source is None else _name(source)
    if source is None or name not in ORDERED or node.args[1] not in {0, 1}:
        return None
    if node.args[1] == 0:
        return ranges.of(source.args[0])
    place = ORDERED[name]
    dimension = source.args[place] if len(source.args) > place else dict(source.kwargs).get("dim", -1)
    size = ranges.size(source.args[0], dimension) if isinstance(dimension, int) else None
    return Interval(0, size - 1) if size else None


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys(
        (
            *("view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "slice", "select", "clone", "alias"),
            *("flip", "repeat", "gather", "index_select", "index", "amax", "amin", "embedding", "_to_copy"),
        ),
        lambda ranges, node: ranges.of(node.args[0]),
    ),
    **dict.fromkeys(("cat", "stack"), _joined),
    "where": lambda ranges, node: _union(ranges, node.args[1:3]),
    "masked_fill": lambda ranges, node: _union(ranges, (node.args[0], node.args[2])),
    "constant_pad_nd": _padded,
    **dict.fromkeys(("full", "full_like", "scalar_tensor"), _number),
    "add": _of_sides(lambda a, b: Interval(a.least + b.least, a.most + b.most)),
    "sub": _of_sides(lambda a, b: Interval(a.least - b.most, a.most - b.least)),
    "mul": _of_sides(_times),
    "maximum": _of_sides(lambda a, b: Interval(max(a.least, b.least), max(a.most, b.most))),
    **dict.fromkeys(
        ("minimum", "clamp_max"), _of_sides(lambda a, b: Interval(min(a.least, b.least), min(a.most, b.most)))
    ),
    "bitwise_and": _of_sides(_common_bits),
    "neg": lambda ranges, node: _times(found, Interval(-1, -1)) if (found := ranges.of(node.args[0])) else None,
    "abs": _absolute,
    **dict.fromkeys(("remainder", "fmod"), _remainder),
    **dict.fromkeys(("floor_divide", "div"), _quotient),
    **dict.fromkeys(("clamp", "clamp_min"), _clamped),
    **dict.fromkeys(("argmax", "argmin"), _place_of_largest),
    "getitem": _part,
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What is known of the whole numbers of a graph.

    `allowed` has the interval of each input that may not be any number of its dtype. `open` names the nodes that may
    still get an index that is out of range, or a divisor of 0: eager raises there, other backends may compute anything.
    """

    allowed: dict[str, Interval]
    open: tuple[str, ...]

    def applied(self, inputs: tuple[TensorSpec, ...]) -> tuple[TensorSpec, ...]:
        """Return the inputs with their limits."""
        return tuple(
            replace(spec, least=self.allowed[spec.name].least, limit=self.allowed[spec.name].most + 1)
            if spec.name in self.allowed
            else spec
            for spec in inputs
        )


def find_limits(graph: Graph, weights: Mapping[str, Tensor], *, one_hot: bool = False) -> Limits:
    """Return the limits of the inputs that `graph` implies.

    With `one_hot`, a comparison with 0, 1, 2, ... counts as `one_hot`, of which torch exports nothing else: the module
    raises for other numbers, its graph does not.
    """
    ranges = Ranges(graph, weights)
    demands = ranges.demands() + (tuple(_one_hots(graph, weights)) if one_hot else ())
    whole = {spec.name: found for spec in graph.inputs if (found := whole_range(spec.dtype)) is not None}
    search = _Search(ranges, whole)
    indices = [demand for demand in demands if demand.allowed is not None and search.met_somewhere(demand)]
    allowed = search.narrowed(indices)
    open_ = search.unmet(demands, allowed)
    narrow = {name: found for name, found in allowed.items() if found != whole[name]}
    return Limits(narrow, tuple(dict.fromkeys(demand.node for demand in open_)))


class _Search:
    """Narrows the inputs until demands are met, each input as little as it must be."""

    def __init__(self, ranges: Ranges, whole: Mapping[str, Interval]) -> None:
        self._ranges = ranges
        self._whole = whole
        self._base = dict.fromkeys(whole, 0)

    def met_somewhere(self, demand: Demand) -> bool:
        """Return whether some single numbers of the inputs meet it: all 0 or, as words counted from 1, all 1."""
        for base in (0, 1):
            if self._met([demand], {name: Interval(base, base) for name in self._whole}):
                if base:
                    self._base.update(dict.fromkeys(self._leading(demand), 1))
                return True
        return False

    def unmet(self, demands: Iterable[Demand], inputs: Mapping[str, Interval]) -> list[Demand]:
        """Return the demands that some numbers of these intervals may not meet."""
        return [demand for demand in demands if not self._met([demand], inputs)]

    def narrowed(self, demands: list[Demand]) -> dict[str, Interval]:
        """Return intervals of the inputs with which all these demands are met; empty if none are found."""
        allowed = dict(self._whole)
        unmet = self.unmet(demands, allowed)
        concerned = [name for name in self._whole if any(name in self._leading(demand) for demand in unmet)]
        for name in concerned:
            allowed[name] = Interval(self._base[name], self._base[name])
        for name in concerned:
            allowed[name] = self._widest(name, allowed, unmet)
        return allowed

    def _widest(self, name: str, allowed: Mapping[str, Interval], demands: list[Demand]) -> Interval:
        """Return the widest interval of this input, first upwards, that meets the demands beside the others'."""
        base, whole = self._base[name], self._whole[name]

        def last_met(good: int, bad: int, interval: Callable[[int], Interval]) -> int:
            while abs(bad - good) > 1:
                middle = (good + bad) // 2
                met = self._met(demands, {**allowed, name: interval(middle)})
                good, bad = (middle, bad) if met else (good, middle)
            return good

        most = last_met(base, whole.most + 1, lambda number: Interval(base, number))
        return Interval(last_met(base, whole.least - 1, lambda number: Interval(number, most)), most)

    def _met(self, demands: list[Demand], inputs: Mapping[str, Interval]) -> bool:
        indices = {demand.index.name for demand in demands if isinstance(demand.index, Value)}
        self._ranges.find(inputs, self._ranges.leading_to(indices))
        return all(demand.met(self._ranges.of(demand.index)) for demand in demands)

    def _leading(self, demand: Demand) -> set[str]:
        if not isinstance(demand.index, Value):
            return set()
        nodes = self._ranges.leading_to({demand.index.name})
        return {demand.index.name, *(value for node in nodes for value in node.values())}


def _one_hots(graph: Graph, weights: Mapping[str, Tensor]) -> Iterator[Demand]:
    """Yield what comparisons with the weight 0, 1, 2, ... demand."""
    for node in graph.nodes:
        if node.op != "aten.eq.Tensor" or len(node.args) != 2 or not isinstance(node.args[1], Weight):
            continue
        classes = weights[node.args[1].name]
        if classes.dim() != 1 or classes.is_floating_point() or classes.tolist() != list(range(len(classes))):
            continue
        if isinstance(node.args[0], Value):
            yield Demand(node.name, node.args[0], Interval(0, len(classes) - 1))
