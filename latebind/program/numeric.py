"""Graphs that numpy computes: what follows from whole numbers, and tables in which words are looked up.

These need no torch when a model is served, and are faster without it. Only operators that numpy computes bit for bit
as torch does are known; `lacking` names the first of a graph that is not. Builds compare what is computed here with
the module, like everything else.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from latebind.domain.model import is_floating
from latebind.domain.sizes import Size, size_of
from latebind.program.arrays import Array, ArrayFunction, Arrays
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight, flat
from latebind.program.operators import BUILTINS, SYM_SIZE

Values = dict[str, Any]  # arrays and sizes, by name
Within = range | tuple[Size, Size]
"""Whole numbers from one to below another; the ends may follow from sizes of the inputs."""

KNOWN = frozenset({"bool", "uint8", "int8", "int16", "int32", "int64", "float32"})
SMALLEST = 127  # the largest number that every dtype of whole numbers holds


def _expand(rows: Array, sizes: Sequence[int]) -> Array:
    own = (*(1,) * (len(sizes) - rows.ndim), *rows.shape)
    whole = tuple([before if size == -1 else size for size, before in zip(sizes, own, strict=True)])
    return rows if whole == rows.shape else np.broadcast_to(rows, whole)


def _any(rows: Array, dim: int, keepdim: bool = False) -> Array:
    return np.asarray(rows.any(axis=dim, keepdims=keepdim))


def _slice(rows: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return rows[(*(slice(None),) * (dim % rows.ndim), slice(start, end, step))]


def _select(rows: Array, dim: int, index: int) -> Array:
    found: Array = rows.take(index, axis=dim)
    return found


def _squeeze(rows: Array, dims: int | Sequence[int]) -> Array:
    some = (dims,) if isinstance(dims, int) else dims
    return rows.squeeze(tuple([dim for dim in some if rows.shape[dim] == 1]))


def _gather(rows: Array, dim: int, places: Array) -> Array:
    _check_none_negative(places)
    own = [slice(size) for size in places.shape]
    own[dim] = slice(None)
    return np.take_along_axis(rows[tuple(own)], places, dim)


def _look_up(table: Array, words: Array, *_: object) -> Array:
    _check_none_negative(words)
    return table.take(words, 0)


def _check_none_negative(places: Array) -> None:
    """Raise `IndexError` for a negative index, as torch does; numpy counts it from the end."""
    if places.size and (least := int(places.min())) < 0:
        raise IndexError(f"{least} is not an index")


def _size(rows: Array, dim: int) -> int:
    return int(rows.shape[dim])


# The result is cast to the type in the graph.
OPERATIONS: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": _size,
    "aten._to_copy.default": lambda rows: rows,
    "aten.clone.default": lambda rows: rows,
    "aten.view.default": lambda rows, sizes: rows.reshape(sizes),
    "aten.permute.default": lambda rows, dims: rows.transpose(dims),
    "aten.unsqueeze.default": np.expand_dims,
    "aten.squeeze.dim": _squeeze,
    "aten.squeeze.dims": _squeeze,
    "aten.expand.default": _expand,
    "aten.slice.Tensor": _slice,
    "aten.select.int": _select,
    "aten.cat.default": lambda rows, dim=0: np.concatenate(rows, axis=dim),
    "aten.any.dim": _any,
    "aten.logical_not.default": np.logical_not,
    "aten.bitwise_not.default": np.invert,
    "aten.where.self": np.where,
    "aten.masked_fill.Scalar": lambda rows, mask, number: np.where(mask, rows.dtype.type(number), rows),
    "aten.full.default": np.full,
    "aten.full_like.default": lambda rows, number: np.full(rows.shape, number),
    "aten.scalar_tensor.default": np.asarray,
    "aten.arange.default": np.arange,
    "aten.arange.start": np.arange,
    "aten.arange.start_step": np.arange,
    "aten.cumsum.default": lambda rows, dim: np.add.accumulate(rows, axis=dim, dtype=np.int64),
    "aten.gather.default": _gather,
    "aten.embedding.default": _look_up,
    **{name: getattr(operator, name) for name in BUILTINS},
}  # fmt: skip
OF_TWO: dict[str, Callable[..., Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "bitwise_and": np.bitwise_and, "bitwise_or": np.bitwise_or, "logical_and": np.logical_and,
    "logical_or": np.logical_or, "minimum": np.minimum, "maximum": np.maximum,
    "add": np.add, "sub": np.subtract, "mul": np.multiply,
}  # fmt: skip
EVERY = OPERATIONS | {
    f"aten.{name}.{kind}": of for name, of in OF_TWO.items() for kind in ("default", "Scalar", "Tensor")
}
# Those that compute floating-point numbers as torch does, to the last bit, or only move them.
FLOATING = frozenset(
    f"aten.{name}"
    for name in (
        "_to_copy.default", "clone.default", "view.default", "permute.default", "unsqueeze.default", "squeeze.dim",
        "squeeze.dims", "expand.default", "slice.Tensor", "select.int", "cat.default", "gather.default",
        "full_like.default", "masked_fill.Scalar", "where.self", "embedding.default", "add.Tensor",
        "sub.Tensor", "mul.Tensor",
    )
)  # fmt: skip
RESULT = frozenset({"dtype", "pin_memory", "non_blocking", "device", "layout", "memory_format"})
"""Arguments by name that repeat the type of the result, or do not affect its numbers."""


def lacking(graph: Graph) -> str:
    """Return the first operator of a graph that is not computed here as torch does; "" if there is none."""
    types = graph.types()
    return next((node.op for node in graph.nodes if not _is_known(node, types)), "")


def _is_known(node: Node, types: Mapping[str, TensorType]) -> bool:
    if node.op in BUILTINS or node.op == SYM_SIZE:
        return all(name not in types for name in node.values()) or node.op == SYM_SIZE
    read, made = [types[name] for name in node.values() if name in types], node.type
    if node.op not in EVERY or made is None or not RESULT.issuperset(dict(node.kwargs)):
        return False
    if not {made.dtype, *(kind.dtype for kind in read)} <= KNOWN:
        return False
    if is_floating(made.dtype):
        return node.op in FLOATING
    numbers = [one for one in flat(node.args) if isinstance(one, int | float) and not isinstance(one, bool)]
    # Torch takes a Python number as one of the tensor's dtype, or converts the tensor to floats for it.
    own = node.op.endswith(".Scalar") and any(isinstance(one, float) or abs(one) > SMALLEST for one in numbers)
    return not own and not any(is_floating(kind.dtype) for kind in read)


def computed(graph: Graph, weights: Mapping[str, Array]) -> ArrayFunction:
    """Return a call that computes a graph that lacks nothing; outputs may be views of inputs and of weights."""
    steps = [_step(node, weights) for node in graph.nodes]
    names, outputs = [spec.name for spec in graph.inputs], [value for _, value in graph.outputs]

    def run(*inputs: Array) -> Arrays:
        values: Values = dict(zip(names, inputs, strict=True))
        for name, step in steps:
            values[name] = step(values)
        return tuple([values[name] for name in outputs])

    return run


def _step(node: Node, weights: Mapping[str, Array]) -> tuple[str, Callable[[Values], Any]]:
    """Return the name of a node and a call that computes it from earlier values."""
    compute, reads = EVERY[node.op], [_reader(argument, weights) for argument in node.args]
    if node.type is None:
        return node.name, lambda values: compute(*[read(values) for read in reads])
    dtype = np.dtype(node.type.dtype)

    def step(values: Values) -> Array:
        found: Array = np.asarray(compute(*[read(values) for read in reads]))
        return found if found.dtype == dtype else found.astype(dtype)

    return node.name, step


def _reader(argument: Argument, weights: Mapping[str, Array]) -> Callable[[Values], Any]:
    match argument:
        case Value(name):
            return operator.itemgetter(name)
        case Weight(name):
            weight = weights[name]
            return lambda values: weight
        case Constant():
            return lambda values: None
        case tuple():
            parts = [_reader(part, weights) for part in argument]
            return lambda values: tuple([part(values) for part in parts])
    return lambda values: argument


class LookUp:
    """A stage that numpy computes. It keeps nothing between calls, so all threads share it."""

    def __init__(self, graph: Graph, weights: Mapping[str, Array]) -> None:
        self._compute = computed(graph, weights)

    def twin(self) -> "LookUp":
        """Return itself."""
        return self

    def __call__(self, *inputs: Array) -> Arrays:
        """Run the stage; outputs are copied where they may be views of an input, which its owner may overwrite."""
        with np.errstate(all="ignore"):
            found = self._compute(*inputs)
        return tuple([rows.copy() if any(np.may_share_memory(rows, one) for one in inputs) else rows for rows in found])

    def of_lengths(self, lengths: Sequence[int], *inputs: Array) -> Arrays:
        """Run the stage: padding costs it hardly anything."""
        del lengths
        return self(*inputs)


class Ahead:
    """What precedes a compiled program: `compute`, None for nothing, and a check that indices are in range.

    `checked` are the positions of its results that are used as indices, with their ranges; `axes` say where the sizes
    that these depend on are among the inputs (`Graph.axes`).
    """

    def __init__(
        self,
        compute: ArrayFunction | None,
        checked: Sequence[tuple[int, Within]],
        axes: Mapping[str, tuple[int, int]],
    ) -> None:
        self._compute = compute
        self._checked = checked
        self._axes = axes

    def __call__(self, *inputs: Array) -> Arrays:
        """Return the inputs of the program; raises `IndexError` for an index out of range."""
        found = inputs if self._compute is None else self._compute(*inputs)
        for place, within in self._checked:
            if found[place].size:
                least, most = int(found[place].min()), int(found[place].max())
                allowed = within if isinstance(within, range) else self._of_sizes(within, inputs)
                if least not in allowed or most not in allowed:
                    raise IndexError(f"an index from {least} to {most} is out of {allowed}")
        return found

    def _of_sizes(self, within: tuple[Size, Size], inputs: Arrays) -> range:
        sizes = {size: inputs[at].shape[axis] for size, (at, axis) in self._axes.items()}
        return range(*[size_of(end, sizes) for end in within])
