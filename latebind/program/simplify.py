"""Passes that simplify a freshly exported graph without changing its outputs (within rounding)."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.fusion import fuse_conv_bn_weights

from latebind.domain.sizes import Size
from latebind.program.cut import CHEAP_OPERATORS, size_only
from latebind.program.eager import torch_constant
from latebind.program.graph import Argument, Constant, Graph, Node, TensorType, Value, Weight, map_argument
from latebind.program.operators import called, is_pointwise

BATCH_NORM = "aten._native_batch_norm_legit_no_training.default"
CONVOLUTION = "aten.convolution.default"
IDENTITIES = ("aten.alias.default", "aten.detach.default")
CLONE = "aten.clone.default"
CAT = "aten.cat.default"
INDEX, UNSQUEEZE, AND = "aten.index.Tensor", "aten.unsqueeze.default", "aten.bitwise_and.Tensor"
CAST, SPREADS = "aten._to_copy.default", frozenset({UNSQUEEZE, "aten.expand.default"})
WHOLE = frozenset({"bool", "int8", "int16", "int32", "int64", "uint8"})

Weights = Mapping[str, Tensor]
Computed = Any  # a tensor, a tuple of tensors, a torch constant, a number


def simplify(graph: Graph, weights: Weights) -> tuple[Graph, dict[str, Tensor]]:
    """Return an equivalent graph and the weights that it still reads, each stored once."""
    graph = drop_identities(graph).needed()
    graph, weights = fold_constants(graph, weights)
    graph = drop_identities(drop_empty_parts(graph, weights))
    graph = drop_whole_indices(graph, weights)
    graph, weights = fold_batch_norms(graph, weights)
    graph, weights = share_equal_weights(hoist_comparisons(hoist_casts(graph)).needed(), weights)
    return graph, {name: weights[name] for name in graph.weights()}


def drop_identities(graph: Graph) -> Graph:
    """Remove nodes that return their first argument unchanged, and the copies that dropout leaves behind."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        same = node.op in IDENTITIES or (node.op == CLONE and not node.kwargs)
        if same and isinstance(node.args[0], Value):
            found[node.name] = node.args[0].name
    return graph.aliased(found)


def drop_empty_parts(graph: Graph, weights: Weights) -> Graph:
    """Remove empty vectors, with which caches of language models start, from concatenations.

    Torch can concatenate them with tensors of more dimensions, other backends cannot.
    """

    def is_empty(part: Argument, dtype: str) -> bool:
        tensor = weights[part.name] if isinstance(part, Weight) else None
        return tensor is not None and tensor.shape == (0,) and str(tensor.dtype) == f"torch.{dtype}"

    def whole(node: Node) -> Node:
        parts = node.args[0] if node.op == CAT else ()
        if not isinstance(parts, tuple) or node.type is None:
            return node
        kept = tuple(part for part in parts if not is_empty(part, node.type.dtype))
        if len(kept) in {0, len(parts)}:
            return node
        if len(kept) == 1:
            return replace(node, op=IDENTITIES[0], args=kept, kwargs=())
        return replace(node, args=(kept, *node.args[1:]))

    return replace(graph, nodes=tuple(whole(node) for node in graph.nodes))


def fold_constants(graph: Graph, weights: Weights) -> tuple[Graph, dict[str, Tensor]]:
    """Compute what depends on weights alone (a transposed matrix, position indices) and store the result."""
    known: dict[str, Any] = {}
    kept: list[Node] = []

    def number(argument: Argument) -> Computed:
        match argument:
            case Value(name):
                return known[name]
            case Weight(name):
                return weights[name]
            case Constant():
                return torch_constant(argument)
        return argument

    def folded(argument: Argument) -> Argument:
        if not isinstance(argument, Value) or argument.name not in known:
            return argument
        value = known[argument.name]
        return Weight(f"{argument.name}.constant") if isinstance(value, Tensor) else value

    outputs = {value for _, value in graph.outputs}
    for node in graph.nodes:
        if node.name not in outputs and all(value in known for value in node.values()):
            kwargs = {key: map_argument(argument, number) for key, argument in node.kwargs}
            known[node.name] = called(node.op)(*(map_argument(argument, number) for argument in node.args), **kwargs)
        else:
            kept.append(node.map_arguments(folded))
    stored = {f"{name}.constant": value.contiguous() for name, value in known.items() if isinstance(value, Tensor)}
    return replace(graph, nodes=tuple(kept)), {**weights, **stored}


def drop_whole_indices(graph: Graph, weights: Weights) -> Graph:
    """Remove indexing by all places in order, and operands of masks that are always true.

    Libraries of language models compute from the places of each pair of words whether one attends to the other. Without
    a window or an order that is just the mask of the words, which each stage has to compute again.
    """
    types, found = graph.types(), list[Node]()
    nodes = {node.name: node for node in graph.nodes}
    users: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in set(node.values()):
            users.setdefault(name, []).append(node)

    def places(argument: Argument) -> tuple[Size | None, int] | None:
        """Return the size whose places an index has, all in order, and its dimension, counted from the last."""
        if isinstance(argument, Weight):
            tensor, count = weights[argument.name], weights[argument.name].numel()
            axis = next((axis for axis in range(-tensor.dim(), 0) if tensor.shape[axis] == count > 1), None)
            whole = tensor.dtype == torch.int64 and torch.equal(tensor.flatten(), torch.arange(count))
            return (count, axis) if whole and axis is not None else None
        node = nodes.get(argument.name) if isinstance(argument, Value) else None
        if node is None or node.type is None or node.type.dtype != "int64":
            return None
        if node.op == "aten.arange.start_step" and node.args[0] == 0 and len(node.args) == 2:
            return node.type.shape[0], -1
        inner = places(node.args[0])
        if inner is None or (node.op != UNSQUEEZE and (node.op, node.args[1:]) != ("aten.add.Tensor", (0,))):
            return None
        size, axis = inner
        if node.op == UNSQUEEZE and isinstance(node.args[1], int):
            rank = len(node.type.shape)
            axis -= node.args[1] % rank > rank + axis - 1
        return size, axis

    def is_true(argument: Argument) -> bool:
        if isinstance(argument, Weight):
            return weights[argument.name].dtype == torch.bool and bool(weights[argument.name].all())
        node = nodes.get(argument.name) if isinstance(argument, Value) else None
        if node is not None and node.op == AND:
            return all(map(is_true, node.args))
        return node is not None and (node.op, node.args[1:]) == ("aten.ge.Scalar", (0,)) and bool(places(node.args[0]))

    def is_spread(node: Node, name: str) -> bool:
        """Return whether all readers of a node expand it to a shape to which this value can be expanded as well."""
        given, whole = types[name].shape, types[node.name].shape
        return len(given) == len(whole) and all(
            user.op == "aten.expand.default"
            and isinstance(user.args[1], tuple)
            and len(user.args[1]) == len(whole)
            and all(size != -1 or a == b for size, a, b in zip(user.args[1], given, whole, strict=True))
            for user in users.get(node.name, [])
        )

    alias: dict[str, str] = {}
    outputs = {value for _, value in graph.outputs}
    for node in graph.nodes:
        source = node.args[0] if node.args else None
        if node.op == AND and len(node.args) == 2 and node.name not in outputs and node.type is not None:
            kept = [part for part in node.args if not is_true(part)]
            if len(kept) == 1 and isinstance(kept[0], Value) and kept[0].name in types:
                name = kept[0].name
                if types[name].dtype == "bool" and (types[name] == node.type or is_spread(node, name)):
                    alias[node.name] = name
        elif node.op == INDEX and isinstance(source, Value) and node.type is not None:
            indices = node.args[1] if isinstance(node.args[1], tuple) else ()
            whole = [places(index) for index in indices]
            rank, shape = len(node.type.shape), types[source.name].shape
            axes = [rank + place[1] for place in whole if place is not None]
            all_places = len(axes) == len(shape) and axes == sorted(set(axes))
            if all_places and [place[0] for place in whole if place is not None] == list(shape):
                found += _unsqueezed(node, source, types[source.name], axes)
                continue
        found.append(node)
    return replace(graph, nodes=tuple(found)).aliased(alias).needed()


def _unsqueezed(node: Node, source: Value, kind: TensorType, axes: Sequence[int]) -> list[Node]:
    """Return nodes that add dimensions of size 1 to a tensor of this type, at `axes` of the result."""
    assert node.type is not None
    new = [axis for axis in range(len(node.type.shape)) if axis not in axes]
    found, shape = list[Node](), list(kind.shape)
    for axis in new:
        shape.insert(axis, 1)
        name = node.name if axis == new[-1] else f"{node.name}.{axis}"
        found.append(Node(name, UNSQUEEZE, (source, axis), (), TensorType(kind.dtype, tuple(shape))))
        source = Value(name)
    return found or [Node(node.name, IDENTITIES[0], (source,), (), node.type)]


def fold_batch_norms(graph: Graph, weights: Weights) -> tuple[Graph, dict[str, Tensor]]:
    """Fold each batch norm that directly follows a convolution into the convolution's weight and bias, in float64."""
    made = {node.name: node for node in graph.nodes}
    readers = Counter(value for node in graph.nodes for value in node.values())
    readers.update(value for _, value in graph.outputs)
    new_weights = dict(weights)
    changes: dict[str, Node] = {}
    alias: dict[str, str] = {}
    for node in graph.nodes:
        norm = made.get(next(node.values(), "")) if node.op == "getitem" and node.args[1] == 0 else None
        conv = made.get(next(norm.values())) if norm is not None and norm.op == BATCH_NORM else None
        if norm is None or conv is None or conv.op != CONVOLUTION or conv.args[6] is not False:
            continue
        read, alone = (*conv.args[1:3], *norm.args[1:5]), readers[norm.name] == readers[conv.name] == 1
        if not alone or not isinstance(read[0], Weight) or not all(isinstance(one, Weight | None) for one in read):
            continue
        doubles = [weights[one.name].detach().double() if isinstance(one, Weight) else None for one in read]
        weight, bias, gamma, beta, mean, variance = doubles
        epsilon = norm.args[6]
        assert weight is not None
        assert mean is not None
        assert variance is not None
        assert isinstance(epsilon, float)
        folded = fuse_conv_bn_weights(weight, bias, mean, variance, epsilon, gamma, beta)
        names, dtype = (f"{conv.name}.folded_weight", f"{conv.name}.folded_bias"), weights[read[0].name].dtype
        new_weights.update((name, tensor.detach().to(dtype)) for name, tensor in zip(names, folded, strict=True))
        changes[conv.name] = replace(conv, args=(conv.args[0], *(Weight(name) for name in names), *conv.args[3:]))
        alias[node.name] = conv.name

    changed = replace(graph, nodes=tuple(changes.get(node.name, node) for node in graph.nodes))
    return changed.aliased(alias), new_weights


def share_equal_weights(graph: Graph, weights: Weights) -> tuple[Graph, dict[str, Tensor]]:
    """Merge tied parameters, which are one tensor in memory, into one weight."""
    first: dict[tuple[Any, ...], str] = {}
    same: dict[str, str] = {}
    for name in graph.weights():
        tensor = weights[name]
        key = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()) if tensor.numel() else (name,)
        same[name] = first.setdefault(key, name)

    def shared(argument: Argument) -> Argument:
        return Weight(same[argument.name]) if isinstance(argument, Weight) else argument

    return graph.map_arguments(shared), dict(weights)


def hoist_casts(graph: Graph) -> Graph:
    """Return the graph with inputs of whole numbers cast to floating point first, and expanded after that.

    Means over the words that count expand the mask over each word's numbers, and cast it at the end. One number for
    each word can be carried across a cut (`cut.Carry`), if it is of the activation's dtype.
    """
    inputs = {spec.name: spec for spec in graph.inputs if spec.dtype in WHOLE}
    nodes, types = {node.name: node for node in graph.nodes}, graph.types()
    first, found = dict[str, Node](), list[Node]()
    for node in graph.nodes:
        path, source = list[Node](), node.args[0] if node.args else None
        while isinstance(source, Value) and source.name in nodes and nodes[source.name].op in SPREADS:
            path.append(nodes[source.name])
            source = path[-1].args[0]
        given = inputs.get(source.name) if isinstance(source, Value) else None
        if node.op != CAST or not path or node.type is None or node.type.dtype in WHOLE or given is None:
            found.append(node)
            continue
        dtype, last = node.type.dtype, f"{given.name}.as.{node.type.dtype}"
        kind = TensorType(dtype, types[given.name].shape)
        first[last] = replace(node, name=last, args=(Value(given.name),), type=kind)
        for number, spread in enumerate(reversed(path), 1):
            name = node.name if number == len(path) else f"{node.name}.{number}"
            kind = TensorType(dtype, spread.type.shape if spread.type is not None else ())
            found.append(replace(spread, name=name, args=(Value(last), *spread.args[1:]), type=kind))
            last = name
    return replace(graph, nodes=(*first.values(), *found)).needed()


def hoist_comparisons(graph: Graph) -> Graph:
    """Return the graph with comparisons of integer inputs first, and equal ones made only once.

    Classifiers on a decoder read the word numbers twice: at the beginning, and at the end to find the last word that is
    not padding. Between blocks the word numbers themselves would have to be kept, which no activation can carry; the
    result of the comparison is small (`cut.Carry`). Without this, GPT-2, Llama and CLIP's text encoder have no cut
    between their blocks.
    """
    cheap = size_only(graph)
    known = {spec.name for spec in graph.inputs if spec.dtype in WHOLE} | cheap
    wanted: set[str] = set()
    for node in graph.nodes:
        if node.type is None or node.type.dtype not in WHOLE or node.name in cheap:
            continue
        if (node.op in CHEAP_OPERATORS or is_pointwise(node.op)) and all(name in known for name in node.values()):
            known.add(node.name)
            if node.type.dtype == "bool":
                wanted.add(node.name)
    for node in reversed(graph.nodes):
        if node.name in wanted:
            wanted.update(node.values())
    first: dict[object, Node] = {}
    alias: dict[str, str] = {}
    for given in graph.nodes:
        if given.name in wanted:
            node = given.rename_values(alias)
            same = first.setdefault((node.op, repr(node.args), repr(node.kwargs)), node)  # 1, 1.0 and True differ
            if same is not node:
                alias[node.name] = same.name
    rest = [node for node in graph.nodes if node.name not in wanted]
    return replace(graph, nodes=(*first.values(), *rest)).aliased(alias)
