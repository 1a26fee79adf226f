"""Runs a graph that only pools in numpy: with next to nothing to compute, the call into a compiled model costs most.

Pooled features of a 32x32 image take OpenVINO 32 microseconds at batch 1 and numpy 18; after a pause of half a
millisecond, when code and data have to be fetched again, 87 and 37.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.program.graph import Argument, Graph, Node, Value

Array = NDArray[Any]
Values = dict[str, Any]  # arrays, tuples of arrays and the batch size, by name
Step = Callable[[Values], Any]


def compile_with_numpy(graph: Graph) -> Callable[..., tuple[Tensor, ...]] | None:
    """Return the graph as a function of tensors `(B, ...)`; None if it does more than pool, reshape and join."""
    shapes = {spec.name: spec.shape for spec in graph.inputs}
    shapes |= {node.name: node.type.row for node in graph.nodes if node.type is not None and node.type.row is not None}
    steps = []
    for node in graph.nodes:
        made = _MAKERS.get(node.op, _unknown)(node, shapes)
        if made is None:
            return None
        steps.append((node.name, made))

    def stage(*inputs: Tensor) -> tuple[Tensor, ...]:
        values: Values = {spec.name: tensor.numpy() for spec, tensor in zip(graph.inputs, inputs, strict=True)}
        for name, step in steps:
            values[name] = step(values)
        return tuple([torch.from_numpy(values[name]) for _, name in graph.outputs])

    return stage


def _unknown(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Step | None:
    del node, shapes
    return None


def _size(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Step | None:
    del shapes
    source, dimension = _name(node), node.args[1]
    return (lambda values: len(values[source])) if source and dimension == 0 else None


def _item(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Step | None:
    """Read the values of a pooling with indices; the indices themselves are not available."""
    del shapes
    source, place = _name(node), node.args[1]
    return (lambda values: values[source]) if source and place == 0 else None


def _view(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Step | None:
    """Reshape each row."""
    source, sizes = _name(node), shapes.get(node.name)
    if source is None or sizes is None:
        return None
    return lambda values: values[source].reshape(len(values[source]), *sizes)


def _cat(node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Step | None:
    del shapes
    parts, axis = node.args[0], node.args[1] if len(node.args) > 1 else 0
    names = [part.name for part in parts if isinstance(part, Value)] if isinstance(parts, tuple) else []
    if not isinstance(axis, int) or axis < 1 or not isinstance(parts, tuple) or len(names) != len(parts):
        return None
    return lambda values: np.concatenate([values[name] for name in names], axis=axis)


def _pool(reduce: Callable[..., Array], mean: bool, node: Node, shapes: Mapping[str, tuple[int, ...]]) -> Step | None:
    """Reduce adjoining cells that fill the image: first along whole lines, then within what is left."""
    source, cell = _name(node), node.args[1]
    shape = shapes.get(source or "", ())
    if source is None or len(shape) != 3 or not _is_plain(node):
        return None
    channels, height, width = shape
    high, wide = _pair(cell)
    if not high or not wide or height % high or width % wide:
        return None
    rows, columns = height // high, width // wide

    def step(values: Values) -> Array:
        image = values[source]
        lines = reduce(image.reshape(-1, channels, rows, high, width), axis=3)
        cells = reduce(lines.reshape(-1, channels, rows, columns, wide), axis=4)
        if mean:
            cells *= np.float32(1.0 / (high * wide))
        return cells

    return step


def _is_plain(node: Node) -> bool:
    """Return whether cells do not overlap, nothing is padded or dilated, and the divisor is the usual one."""
    arguments = dict(enumerate(node.args))
    averages = node.op == AVERAGE
    stride, padding = arguments.get(2, ()), arguments.get(3, 0)
    dilation, divisor = (1, arguments.get(6)) if averages else (arguments.get(4, 1), None)
    plain = _pair(padding) == (0, 0) and _pair(dilation) == (1, 1) and divisor is None
    return plain and not node.kwargs and (stride in ((), None) or _pair(stride) == _pair(arguments[1]))


def _pair(argument: Argument) -> tuple[int, int]:
    """Return height and width of an argument that may be one number for both; zeros if it is neither."""
    if isinstance(argument, int):
        return argument, argument
    sizes = [one for one in argument if isinstance(one, int)] if isinstance(argument, tuple) else []
    return (sizes[0], sizes[-1]) if sizes else (0, 0)


def _name(node: Node) -> str | None:
    return node.args[0].name if isinstance(node.args[0], Value) else None


AVERAGE = "aten.avg_pool2d.default"
_MAKERS: Mapping[str, Callable[[Node, Mapping[str, tuple[int, ...]]], Step | None]] = {
    "aten.sym_size.int": _size,
    "getitem": _item,
    "aten.view.default": _view,
    "aten.cat.default": _cat,
    AVERAGE: partial(_pool, np.add.reduce, True),
    "aten.max_pool2d_with_indices.default": partial(_pool, np.maximum.reduce, False),
}
