"""Finds root-mean-square norms that a module computes in parts, as T5 and Llama do, and joins them to one operator.

Backends have a kernel for the whole. Besides, a graph is not cut before a pointwise operator, which the first part is.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from latebind.program.graph import Argument, Graph, Node, Value, Weight

MULTIPLY = "aten.mul.Tensor"
RMS_NORM = "aten.rms_norm.default"


def join_rms_norms(graph: Graph, weights: Mapping[str, Tensor]) -> Graph:
    """Return the graph with `weight * (x * rsqrt(mean(x ** 2) + epsilon))` as one node; the parts remain, unused."""
    nodes = {node.name: node for node in graph.nodes}
    readers = Counter(value for node in graph.nodes for value in node.values())
    readers.update(value for _, value in graph.outputs)

    def made(argument: Argument, op: str) -> Node | None:
        """Return the node that yields the argument if it is such a one and nothing else reads it."""
        node = nodes.get(argument.name) if isinstance(argument, Value) else None
        return node if node is not None and node.op == op and readers[node.name] == 1 else None

    def source(scaled: Node | None) -> tuple[Argument, float] | None:
        """Return x and epsilon where the node is x * rsqrt(mean(x ** 2) + epsilon)."""
        if scaled is None:
            return None
        for x, factor in (scaled.args, scaled.args[::-1]):
            root = made(factor, "aten.rsqrt.default")
            total = made(root.args[0], "aten.add.Tensor") if root else None
            mean = made(total.args[0], "aten.mean.dim") if total else None
            square = made(mean.args[0], "aten.pow.Tensor_Scalar") if mean else None
            if total is None or mean is None or square is None or total.kwargs or mean.kwargs:
                continue
            epsilon = total.args[1]
            if square.args == (x, 2) and mean.args[1:] == ((-1,), True) and isinstance(epsilon, float):
                return x, epsilon
        return None

    def whole(node: Node) -> Node:
        if node.op != MULTIPLY or node.type is None:
            return node
        for weight, rest in (node.args, node.args[::-1]):
            found = source(made(rest, MULTIPLY)) if isinstance(weight, Weight) else None
            if found is None or not isinstance(weight, Weight):
                continue
            x, epsilon = found
            tensor, width = weights[weight.name], node.type.shape[-1]
            if tuple(tensor.shape) == (width,) and str(tensor.dtype) == f"torch.{_dtype(x, nodes, graph)}":
                return replace(node, op=RMS_NORM, args=(x, (width,), weight, epsilon))
        return node

    return replace(graph, nodes=tuple(whole(node) for node in graph.nodes))


def _dtype(argument: Argument, nodes: Mapping[str, Node], graph: Graph) -> str:
    """Return the dtype of a tensor, without `torch.`."""
    if not isinstance(argument, Value):
        return ""
    kind = nodes[argument.name].type if argument.name in nodes else None
    return kind.dtype if kind is not None else next((s.dtype for s in graph.inputs if s.name == argument.name), "")
