"""Graphs as JSON. Reading trusts nothing: every name, type and reference is checked, and no code is looked up."""

import math
import re
from typing import Any

import msgspec
import torch

from latebind.domain.errors import ExportError, RepositoryError
from latebind.domain.model import INNER_DTYPES, ITEM_BYTES, TensorSpec
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight
from latebind.program.operators import resolve
from latebind.repository.directory import ModelDirectory

Json = Any  # what a JSON parser returns

FORMAT = 1
MOST_NODES = 30_000
MOST_BYTES = 16 << 20  # of a file: checked before anything is read
MOST_SIZE = 1 << 40  # of one dimension
MAX_DEPTH = 4  # nested lists in an argument; ATen needs two
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,255}")

CONSTANTS: dict[str, frozenset[str]] = {
    "dtype": INNER_DTYPES,
    "device": frozenset({"cpu"}),
    "layout": frozenset({"strided"}),
    "memory_format": frozenset({"contiguous_format", "preserve_format", "channels_last"}),
    "float": frozenset({"inf", "-inf", "nan"}),
}


class _Type(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    dtype: str
    shape: list[int | None]


class _Input(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    name: str
    dtype: str
    shape: list[int]


class _Node(msgspec.Struct, forbid_unknown_fields=True, frozen=True, omit_defaults=True):
    name: str
    op: str
    args: list[Any]
    kwargs: dict[str, Any] = {}
    type: _Type | None = None


class _Counted(msgspec.Struct, frozen=True):
    nodes: list[msgspec.Raw] = []


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    format: int
    inputs: list[_Input]
    nodes: list[_Node]
    outputs: list[tuple[str, str]]


def graph_to_json(graph: Graph) -> bytes:
    """Return the graph as JSON; `graph_from_json` returns an equal graph."""
    if len(graph.nodes) > MOST_NODES:
        raise ExportError(f"the graph has {len(graph.nodes)} nodes, more than {MOST_NODES}: unroll fewer steps")
    file = _File(
        format=FORMAT,
        inputs=[_Input(spec.name, spec.dtype, list(spec.shape)) for spec in graph.inputs],
        nodes=[_write_node(node) for node in graph.nodes],
        outputs=list(graph.outputs),
    )
    return msgspec.json.format(msgspec.json.encode(file), indent=0)


def read_graph_file(directory: ModelDirectory, name: str) -> Graph:
    """Return the graph in a listed file; raises `RepositoryError` naming it if there is none in it."""
    try:
        return graph_from_json(directory.read(name, most=MOST_BYTES))
    except RepositoryError as error:
        path = str(directory.path / name)
        raise error if path in str(error) else RepositoryError(f"{path}: {error}") from None


def graph_from_json(data: bytes) -> Graph:
    """Return the graph that `data` describes.

    Raises `RepositoryError` if it is not such a file, names an operator that is not allowed, defines a name twice, or
    reads a value that no earlier node computes (so there are no cycles).
    """
    try:
        count = len(msgspec.json.decode(data, type=_Counted).nodes)
        if count > MOST_NODES:  # known before objects are made of them, which takes long
            raise RepositoryError(f"the graph has {count} nodes, more than {MOST_NODES}: build a smaller model")
        file = msgspec.json.decode(data, type=_File)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise RepositoryError(f"the graph file is not valid: {error}; build the model again") from error
    if file.format != FORMAT:
        raise RepositoryError(f"the graph file has format {file.format}, this version reads {FORMAT}: build it again")
    graph = Graph(
        inputs=tuple(_read_input(spec) for spec in file.inputs),
        nodes=tuple(_read_node(node) for node in file.nodes),
        outputs=tuple(file.outputs),
    )
    _check_references(graph)
    return graph


def _write_node(node: Node) -> _Node:
    return _Node(
        name=node.name,
        op=node.op,
        args=[_write_argument(argument) for argument in node.args],
        kwargs={key: _write_argument(argument) for key, argument in node.kwargs},
        type=None if node.type is None else _Type(node.type.dtype, list(node.type.shape)),
    )


def _write_argument(argument: Argument) -> Json:
    match argument:
        case Value(name):
            return {"value": name}
        case Weight(name):
            return {"weight": name}
        case Constant(kind, name):
            return {kind: name}
        case tuple():
            return [_write_argument(part) for part in argument]
        case float() if not math.isfinite(argument):
            return {"float": str(argument)}
    return argument


def _read_input(spec: _Input) -> TensorSpec:
    if spec.dtype not in ITEM_BYTES or any(not 0 <= size < MOST_SIZE for size in spec.shape):
        raise RepositoryError(
            f"input {spec.name!r:.80} of the graph has dtype {spec.dtype!r:.40} and shape {spec.shape!s:.80}"
        )
    return TensorSpec(spec.name, spec.dtype, tuple(spec.shape))


def _read_node(node: _Node) -> Node:
    resolve(node.op)
    return Node(
        name=node.name,
        op=node.op,
        args=tuple(_read_argument(node.name, part, MAX_DEPTH) for part in node.args),
        kwargs=tuple((key, _read_argument(node.name, part, MAX_DEPTH)) for key, part in node.kwargs.items()),
        type=None if node.type is None else _read_type(node.name, node.type),
    )


def _read_type(node: str, found: _Type) -> TensorType:
    sizes = [size for size in found.shape if size is not None]
    if found.dtype not in INNER_DTYPES or any(not -1 <= size < MOST_SIZE for size in sizes):
        raise RepositoryError(
            f"node {node!r:.80} yields {found.dtype!r:.40} of shape {found.shape!s:.80}: this is not supported"
        )
    return TensorType(found.dtype, tuple(found.shape))


def _read_argument(node: str, found: Json, depth: int) -> Argument:
    if isinstance(found, list) and depth:
        return tuple(_read_argument(node, part, depth - 1) for part in found)
    if isinstance(found, dict) and len(found) == 1:
        return _read_tagged(node, *next(iter(found.items())))
    if found is None or isinstance(found, bool | int | float | str):
        return found
    raise RepositoryError(f"node {node!r} of the graph has an argument of no known form: {str(found)[:80]}")


def _read_tagged(node: str, kind: str, name: Json) -> Argument:
    if isinstance(name, str):
        if kind == "value":
            return Value(name)
        if kind == "weight" and NAME.fullmatch(name):
            return Weight(name)
        if name in CONSTANTS.get(kind, ()):
            return float(name) if kind == "float" else Constant(kind, name)
    raise RepositoryError(f"node {node!r} of the graph has an unknown constant: {kind[:40]} = {str(name)[:80]}")


def torch_constant(constant: Constant) -> torch.dtype | torch.device | torch.layout | torch.memory_format:
    """Return the torch object for a constant read from a file."""
    if constant.kind == "device":
        return torch.device(constant.name)
    found: torch.dtype | torch.layout | torch.memory_format = getattr(torch, constant.name)
    return found


def _check_references(graph: Graph) -> None:
    known: set[str] = set()
    for name in (spec.name for spec in graph.inputs):
        _check_new(name, known)
        known.add(name)
    for node in graph.nodes:
        for value in node.values():
            if value not in known:
                raise RepositoryError(f"node {node.name!r} of the graph reads {value!r}, which no earlier node makes")
        _check_new(node.name, known)
        known.add(node.name)
    tensors = {spec.name for spec in graph.inputs} | {node.name for node in graph.nodes if node.type is not None}
    for output, value in graph.outputs:
        if value not in tensors:
            raise RepositoryError(f"output {output!r} of the graph is {value!r}, which is no tensor of the graph")
    if not graph.inputs or not graph.outputs:
        raise RepositoryError("the graph has no input or no output: build the model again")


def _check_new(name: str, known: set[str]) -> None:
    if name in known or not NAME.fullmatch(name):
        raise RepositoryError(f"the graph makes the value {name[:80]!r} twice, or that is not a valid name")
