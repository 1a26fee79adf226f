"""A network as data: inputs, operator calls in order, outputs. Plain values only, which are stored as JSON.

A `Graph` is a whole model or one stage of it. Both have the same form, so cutting is slicing (`cut`). Files are not
trusted: every name, type and reference is checked, and no code is looked up.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import msgspec

from latebind.domain.errors import ExportError, RepositoryError
from latebind.domain.model import INNER_DTYPES, ITEM_BYTES, TensorSpec
from latebind.domain.sizes import MOST_SIZE, Dim, Size, make_sense, size_of
from latebind.program.operators import resolve
from latebind.repository.directory import ModelDirectory


@dataclass(frozen=True, slots=True)
class Value:
    """A reference to an input of the graph or to the result of an earlier node."""

    name: str


@dataclass(frozen=True, slots=True)
class Weight:
    """A reference to a tensor in the weights file."""

    name: str


@dataclass(frozen=True, slots=True)
class Constant:
    """A torch constant by its name; `kind` is "dtype", "device", "layout" or "memory_format"."""

    kind: str
    name: str


Argument = Value | Weight | Constant | str | float | int | bool | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The type of a node's result. A dimension None is the batch; -1 is another size that depends on the batch.

    A size given as text is in terms of the graph's named dimensions.
    """

    dtype: str
    shape: tuple[Size | None, ...]

    @property
    def row(self) -> tuple[Size, ...] | None:
        """The sizes of one row if dimension 0 is the batch and no other depends on that, else None."""
        own = tuple(size for size in self.shape[1:] if size is not None and size != -1)
        whole = self.shape[:1] == (None,) and len(own) == len(self.shape) - 1
        return own if whole else None


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator. `type` is None if the result is not a single tensor (a tuple, the batch size)."""

    name: str
    op: str
    args: tuple[Argument, ...]
    kwargs: tuple[tuple[str, Argument], ...] = ()
    type: TensorType | None = None

    def values(self) -> Iterator[str]:
        """Yield the names of the values that this node reads, in order, with repetitions."""
        yield from (ref.name for ref in self._arguments() if isinstance(ref, Value))

    def weights(self) -> Iterator[str]:
        """Yield the names of the weights that this node reads."""
        yield from (ref.name for ref in self._arguments() if isinstance(ref, Weight))

    def _arguments(self) -> Iterator["Argument"]:
        return flat((*self.args, *dict(self.kwargs).values()))

    def map_arguments(self, change: Callable[[Argument], Argument]) -> "Node":
        """Return the node with `change` applied to all its arguments, also within tuples."""
        args = tuple(map_argument(argument, change) for argument in self.args)
        kwargs = tuple((key, map_argument(argument, change)) for key, argument in self.kwargs)
        return replace(self, args=args, kwargs=kwargs)

    def rename_values(self, names: Mapping[str, str]) -> "Node":
        """Return the node reading each value that is in `names` by its new name."""

        def rename(argument: Argument) -> Argument:
            return Value(names.get(argument.name, argument.name)) if isinstance(argument, Value) else argument

        return self.map_arguments(rename)


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in an order in which every value is computed before it is read.

    `inputs` are tensors whose dimension 0 is the batch (`shape` leaves it out). `outputs` pairs the name that clients
    see with the name of the value. `dims` are the named dimensions, in which sizes differ from row to row.

    Where a module's code fixes sizes, there are `buckets` in place of nodes: graphs for fixed sizes, the smallest
    first. A row is padded to the first that it fits (`backends.Bucketed`).
    """

    inputs: tuple[TensorSpec, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[str, str], ...]
    dims: tuple[Dim, ...] = ()
    buckets: tuple["Graph", ...] = ()

    def weights(self) -> tuple[str, ...]:
        """Return the names of all weights that the graph reads, each once, in order of first use."""
        read = chain.from_iterable(
            [node.weights() for node in self.nodes] + [bucket.weights() for bucket in self.buckets]
        )
        return tuple(dict.fromkeys(read))

    def types(self) -> dict[str, TensorType]:
        """Return the type of every value that is one tensor, by name."""
        types = {spec.name: TensorType(spec.dtype, (None, *(spec.sizes or spec.shape))) for spec in self.inputs}
        return types | {node.name: node.type for node in self.nodes if node.type is not None}

    def output_specs(self) -> tuple[TensorSpec, ...]:
        """Return name, dtype and shape of each output, without the batch dimension."""
        if self.buckets:
            return self._of_buckets()
        types = self.types()
        return tuple(self.spec(name, types[value]) for name, value in self.outputs)

    def spec(self, name: str, kind: TensorType) -> TensorSpec:
        """Return the spec of a tensor with rows of this type; without dimensions if the type has no rows."""
        sizes = kind.row or ()
        shape = tuple(size_of(size, self.largest) for size in sizes)
        return TensorSpec(name, kind.dtype, shape, sizes=() if shape == sizes else sizes)

    def _of_buckets(self) -> tuple[TensorSpec, ...]:
        """Return the outputs with sizes in terms of the named dimensions, which fit those of all buckets."""
        known, found = self.bucket_sizes(), list[TensorSpec]()
        for of_output in zip(*(bucket.output_specs() for bucket in self.buckets), strict=True):
            sizes = tuple(_in_terms(known, each) for each in zip(*(spec.shape for spec in of_output), strict=True))
            found.append(self.spec(of_output[-1].name, TensorType(of_output[-1].dtype, (None, *sizes))))
        return tuple(found)

    def bucket_sizes(self) -> list[dict[str, int]]:
        """Return the sizes of the named dimensions in each bucket."""
        at = self.axes
        return [
            {name: bucket.inputs[place].shape[axis - 1] for name, (place, axis) in at.items()}
            for bucket in self.buckets
        ]

    @property
    def axes(self) -> dict[str, tuple[int, int]]:
        """Where each named dimension is among the inputs: the input's index, and the axis, counting the batch."""
        return {
            size: (place, axis)
            for place, spec in enumerate(self.inputs)
            for axis, size in enumerate(spec.sizes, 1)
            if isinstance(size, str)
            if size in self.largest
        }

    @property
    def whole(self) -> "Graph":
        """The graph itself, or the largest of its buckets: the one that has nodes."""
        return self.buckets[-1] if self.buckets else self

    @property
    def largest(self) -> dict[str, int]:
        """The largest size of each named dimension."""
        return {dim.name: dim.most for dim in self.dims}

    def map_arguments(self, change: Callable[[Argument], Argument]) -> "Graph":
        """Return the graph with `change` applied to all arguments of its nodes."""
        nodes = tuple(node.map_arguments(change) for node in self.nodes)
        return replace(self, nodes=nodes, buckets=tuple(bucket.map_arguments(change) for bucket in self.buckets))

    def aliased(self, names: Mapping[str, str]) -> "Graph":
        """Return the graph without the nodes in `names`; their readers read the values that `names` maps them to."""
        last = {name: name for name in names}
        for name in names:
            while last[name] in names:
                last[name] = names[last[name]]
        nodes = tuple(node.rename_values(last) for node in self.nodes if node.name not in names)
        outputs = tuple((name, last.get(value, value)) for name, value in self.outputs)
        return replace(self, nodes=nodes, outputs=outputs)

    def needed(self) -> "Graph":
        """Return the graph without nodes whose results are not used."""
        wanted, kept = {value for _, value in self.outputs}, list[Node]()
        for node in reversed(self.nodes):
            if node.name in wanted:
                kept.append(node)
                wanted.update(node.values())
        return replace(self, nodes=tuple(reversed(kept)))


def _in_terms(known: Sequence[Mapping[str, int]], sizes: Sequence[int]) -> Size:
    """Return a size that has the values `sizes` at `known` sizes of named dimensions, in terms of one of these.

    Raises `ExportError` if it is neither constant nor grows evenly.
    """
    if len(set(sizes)) == 1:
        return sizes[0]
    for name in known[-1]:
        own = [each[name] for each in known]
        if own == list(sizes):
            return name
        steps, more = own[-1] - own[0], sizes[-1] - sizes[0]
        if steps <= 0 or more <= 0:
            continue
        times = max(1, more // steps)  # else one more for each `every`, as after a stride
        each_of = range(max(1, steps // (more + 1)), steps // max(more - 1, 1) + 2) if times == 1 else (1,)
        for every, phase in islice(((one, more) for one in each_of for more in range(one)), MOST_TRIED):
            plus = sizes[0] * every - times * own[0] + phase
            if all((times * one + plus) // every == size for one, size in zip(own, sizes, strict=True)):
                return f"({times} * {name} + {plus}) // {every}"
    raise ExportError(f"an output has sizes {list(sizes)} for {list(known)}: return one that grows with its input")


def map_argument(argument: Argument, change: Callable[[Argument], Argument]) -> Argument:
    """Return `argument` with `change` applied to everything in it that is not a tuple."""
    if isinstance(argument, tuple):
        return tuple(map_argument(part, change) for part in argument)
    return change(argument)


def flat(arguments: tuple[Argument, ...]) -> Iterator[Argument]:
    """Yield the arguments, and those within tuples."""
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from flat(argument)
        else:
            yield argument


Json = Any  # what a JSON parser returns

FORMAT = 1
MOST_NODES = 30_000
MOST_BYTES = 16 << 20  # of a file: checked before anything is read
MOST_TRIED = 1 << 14  # ways in which a size may follow from another
MAX_DEPTH = 4  # nested lists in an argument; ATen needs two
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,255}")

CONSTANTS: dict[str, frozenset[str]] = {
    "dtype": INNER_DTYPES,
    "device": frozenset({"cpu"}),
    "layout": frozenset({"strided"}),
    "memory_format": frozenset({"contiguous_format", "preserve_format", "channels_last"}),
    "float": frozenset({"inf", "-inf", "nan"}),
}


class _Input(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: str
    dtype: str
    shape: tuple[Size, ...]


class _Node(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    name: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any] = {}
    type: TensorType | None = None


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    format: int
    inputs: list[_Input]
    nodes: list[_Node]
    outputs: list[tuple[str, str]]
    dims: tuple[Dim, ...] = ()
    buckets: list["_File"] = msgspec.field(name="rungs", default_factory=list)  # their name in files


def graph_to_json(graph: Graph) -> bytes:
    """Return the graph as JSON; `graph_from_json` returns an equal graph."""
    count = sum(len(part.nodes) for part in (graph, *graph.buckets))
    if count > MOST_NODES:
        raise ExportError(f"the graph has {count} nodes, more than {MOST_NODES}: unroll fewer steps")
    return msgspec.json.format(msgspec.json.encode(_file(graph)), indent=0)


def _file(graph: Graph) -> _File:
    nodes = []
    for node in graph.nodes:
        kwargs = {key: _written(argument) for key, argument in node.kwargs}
        nodes.append(_Node(node.name, node.op, [_written(argument) for argument in node.args], kwargs, node.type))
    inputs = [_Input(spec.name, spec.dtype, spec.sizes or spec.shape) for spec in graph.inputs]
    return _File(FORMAT, inputs, nodes, list(graph.outputs), graph.dims, [_file(bucket) for bucket in graph.buckets])


def _written(argument: Argument) -> Json:
    match argument:
        case Value(name):
            return {"value": name}
        case Weight(name):
            return {"weight": name}
        case Constant(kind, name):
            return {kind: name}
        case tuple():
            return [_written(part) for part in argument]
        case float() if not math.isfinite(argument):
            return {"float": str(argument)}
    return argument


Known = Callable[[str], object]  # raises `RepositoryError` for an operator's name that is not allowed


def read_graph_file(directory: ModelDirectory, name: str, *, known: Known = resolve) -> Graph:
    """Return the graph in a listed file; raises `RepositoryError`, which names the file, if it holds none."""
    try:
        return graph_from_json(directory.read(name, most=MOST_BYTES), known=known)
    except RepositoryError as error:
        path = str(directory.path / name)
        raise error if path in str(error) else RepositoryError(f"{path}: {error}") from None


def graph_from_json(data: bytes, *, known: Known = resolve) -> Graph:
    """Return the graph that `data` describes; `known` checks the name of each operator.

    Raises `RepositoryError` if it is not such a file, names an operator that is not allowed, defines a name twice, or
    reads a value that no earlier node computes (so there are no cycles).
    """
    try:
        if (count := data.count(b'"op"')) > MOST_NODES:  # counted before objects are made of them, which takes long
            raise RepositoryError(f"the graph has {count} nodes, more than {MOST_NODES}: build a smaller model")
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RepositoryError(f"the graph file is not valid: {error}; build the model again") from error
    if file.format != FORMAT:
        raise RepositoryError(f"the graph file has format {file.format}, this version reads {FORMAT}: build it again")
    graph = _read(file, known)
    return checked_buckets(graph) if graph.buckets else graph


def _read(file: _File, known: Known) -> Graph:
    graph = Graph((), (), tuple(file.outputs), file.dims)
    named = {dim.name for dim in file.dims}
    if not make_sense(file.dims):
        raise RepositoryError(f"the graph has the named dimensions {named!s:.200}, which are invalid: build it again")
    for spec in file.inputs:
        fixed = [size for size in spec.shape if size not in named]
        if spec.dtype not in ITEM_BYTES or any(isinstance(size, str) or not 0 <= size < MOST_SIZE for size in fixed):
            raise RepositoryError(
                f"input {spec.name!r:.80} of the graph has dtype {spec.dtype!r:.40} and shape {list(spec.shape)!s:.80}"
            )
    inputs = tuple(graph.spec(spec.name, TensorType(spec.dtype, (None, *spec.shape))) for spec in file.inputs)
    ends = [{dim.name: dim.least for dim in file.dims}, graph.largest]
    nodes = tuple(_read_node(node, ends, known) for node in file.nodes)
    buckets = tuple(_read(bucket, known) for bucket in file.buckets)
    graph = replace(graph, inputs=inputs, nodes=nodes, buckets=buckets)
    if not buckets:
        _check_references(graph)
    return graph


def checked_buckets(graph: Graph) -> Graph:
    """Return a graph with buckets; raises `RepositoryError` unless they are the same graph for several sizes."""

    def tensors(one: Graph) -> object:
        return [(spec.name, spec.dtype) for spec in one.inputs], [name for name, _ in one.outputs]

    try:
        if any(bucket.dims or bucket.buckets or tensors(bucket) != tensors(graph) for bucket in graph.buckets):
            raise ValueError("one has other tensors")
        sizes = graph.bucket_sizes()
        for bucket, each in zip(graph.buckets, sizes, strict=True):
            if [spec.shape for spec in bucket.inputs] != [spec.shape_of(each) for spec in graph.inputs]:
                raise ValueError(f"one does not take rows of {each}")
        if graph.nodes or not graph.dims or sizes[-1] != graph.largest:
            raise ValueError("the last one is not for the largest rows")
        graph.output_specs()
        return graph
    except (ValueError, IndexError, ExportError) as error:
        raise RepositoryError(f"the graphs for several sizes do not fit ({error}): build the model again") from None


def _makes_sense(size: Size, ends: Sequence[Mapping[str, int]]) -> bool:
    """Return whether a size is a valid one of a tensor, or -1, at both ends of the named dimensions."""
    try:
        return all((0 if isinstance(size, str) else -1) <= size_of(size, end) < MOST_SIZE for end in ends)
    except ValueError:
        return False


def _read_node(node: _Node, ends: Sequence[Mapping[str, int]], known: Known) -> Node:
    known(node.op)
    kind = node.type
    sizes = [size for size in kind.shape if size is not None] if kind is not None else []
    if kind is not None and (kind.dtype not in INNER_DTYPES or not all(_makes_sense(size, ends) for size in sizes)):
        raise RepositoryError(
            f"node {node.name!r:.80} yields {kind.dtype!r:.40} of shape {list(kind.shape)!s:.80}: this is not supported"
        )
    args = tuple(_read_argument(node.name, part, MAX_DEPTH) for part in node.args)
    kwargs = tuple((key, _read_argument(node.name, part, MAX_DEPTH)) for key, part in node.kwargs.items())
    return Node(node.name, node.op, args, kwargs, kind)


def _read_argument(node: str, found: Json, depth: int) -> Argument:
    if isinstance(found, list) and depth:
        return tuple(_read_argument(node, part, depth - 1) for part in found)
    if found is None or isinstance(found, bool | int | float | str):
        return found
    if not isinstance(found, dict) or len(found) != 1:
        raise RepositoryError(f"node {node!r} of the graph has an argument of no known form: {str(found)[:80]}")
    ((kind, name),) = found.items()
    if isinstance(name, str):
        if kind == "value":
            return Value(name)
        if kind == "weight" and NAME.fullmatch(name):
            return Weight(name)
        if name in CONSTANTS.get(kind, ()):
            return float(name) if kind == "float" else Constant(kind, name)
    raise RepositoryError(f"node {node!r} of the graph has an unknown constant: {kind[:40]} = {str(name)[:80]}")


def _check_references(graph: Graph) -> None:
    known: set[str] = set()
    makers: tuple[TensorSpec | Node, ...] = (*graph.inputs, *graph.nodes)
    for maker in makers:
        for value in maker.values() if isinstance(maker, Node) else ():
            if value not in known:
                raise RepositoryError(
                    f"node {maker.name!r} of the graph reads {value!r}, which no earlier node computes"
                )
        if maker.name in known or not NAME.fullmatch(maker.name):
            raise RepositoryError(f"the graph defines {maker.name[:80]!r} twice, or that is not a valid name")
        known.add(maker.name)
    tensors = graph.types()
    for output, value in graph.outputs:
        if value not in tensors:
            raise RepositoryError(f"output {output!r} of the graph is {value!r}, which is not a tensor of the graph")
    if not graph.inputs or not graph.outputs:
        raise RepositoryError("the graph has no input or no output: build the model again")
