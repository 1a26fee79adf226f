"""Makes an `fx.GraphModule`, which torch and the backends can run, from a graph and its weights."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from latebind.domain.errors import RepositoryError
from latebind.program.device import HOST
from latebind.program.graph import Argument, Constant, Graph, Value, Weight, torch_constant
from latebind.program.operators import called

TorchArgument = Any  # an fx node, a torch constant, a number, or a list of these


def rebuild(
    graph: Graph,
    weights: Mapping[str, Tensor],
    *,
    device: torch.device = HOST,
    operator: Callable[[str], TorchArgument] = called,
) -> GraphModule:
    """Return a module that takes the graph's inputs and returns a tuple of its outputs, all on `device`.

    `operator` maps an operator's name to what is called. Names from the graph never get into the code that fx
    generates: values become v0, v1, ... and weights w0, w1, ... Raises `RepositoryError` for a missing weight or an
    operator that is not allowed.
    """
    root = nn.Module()
    fx = FxGraph()
    made: dict[str, FxNode] = {}
    for position, spec in enumerate(graph.inputs):
        made[spec.name] = fx.placeholder(f"x{position}")
    stored = {name: _add_weight(root, fx, f"w{i}", name, weights) for i, name in enumerate(graph.weights())}

    def torch_argument(argument: Argument) -> TorchArgument:
        match argument:
            case Value(name):
                return made[name]
            case Weight(name):
                return stored[name]
            case Constant("device"):
                return device  # graphs are exported on the CPU and name it for the constants they create
            case Constant():
                return torch_constant(argument)
            case tuple():
                return [torch_argument(part) for part in argument]
        return argument

    for position, node in enumerate(graph.nodes):
        args = tuple(torch_argument(argument) for argument in node.args)
        kwargs = {key: torch_argument(argument) for key, argument in node.kwargs}
        made[node.name] = fx.create_node("call_function", operator(node.op), args, kwargs, name=f"v{position}")
    fx.output(tuple(made[value] for _, value in graph.outputs))
    return GraphModule(root, fx).eval()


def _add_weight(root: nn.Module, fx: FxGraph, short: str, name: str, weights: Mapping[str, Tensor]) -> FxNode:
    if name not in weights:
        raise RepositoryError(f"the graph reads the weight {name!r}, which the weights file does not have: build again")
    root.register_buffer(short, weights[name].detach())
    return fx.get_attr(short)


def copy_input_views(outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs; those that are views of an input, which its owner may overwrite, are copied."""
    owned = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    return tuple(t.clone() if t.untyped_storage().data_ptr() in owned else t for t in outputs)


def in_eager(graph: Graph, weights: Mapping[str, Tensor]) -> Callable[..., tuple[Tensor, ...]]:
    """Return what computes the graph's outputs operator by operator by torch: the reference for every backend."""
    module = rebuild(graph, weights)  # takes as long as many calls of a small graph

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.inference_mode():
            found: tuple[Tensor, ...] = module(*inputs)
        return found

    return run


def run_eagerly(graph: Graph, weights: Mapping[str, Tensor], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return what the graph yields for these inputs, once."""
    return in_eager(graph, weights)(*inputs)
