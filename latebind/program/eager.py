"""The `eager` backend: a graph as an `fx.GraphModule`, which torch runs operator by operator and others compile."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule
from torch.fx import Node as FxNode

from latebind.domain.errors import RepositoryError
from latebind.program.backends import Backend, CompileOptions, StageFunction, by_bucket
from latebind.program.device import HOST
from latebind.program.graph import Argument, Constant, Graph, Value, Weight
from latebind.program.operators import called

WIDER = {"float16": "float64", "bfloat16": "float64", "float32": "float64", "complex64": "complex128"}
TorchArgument = Any  # an fx node, a torch constant, a number, or a list of these


class Eager(Backend):
    """Torch, operator by operator. Runs every graph that can be exported, and raises where the module does."""

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        """Rebuild the graph as a module; the number of threads is set for the whole process."""
        torch.set_num_threads(use.threads)
        run = rebuild(
            graph, weights, device=use.device
        ).forward  # a call of the module itself would look for hooks first

        def stage(*inputs: Tensor) -> tuple[Tensor, ...]:
            if torch.is_inference_mode_enabled():  # serving threads enter it once
                return copy_input_views(run(*inputs), inputs)
            with torch.inference_mode():
                return copy_input_views(run(*inputs), inputs)

        return stage


def rebuild(
    graph: Graph,
    weights: Mapping[str, Tensor],
    *,
    device: str = HOST,
    operator: Callable[[str], TorchArgument] = called,
) -> GraphModule:
    """Return a module that takes the graph's inputs and returns a tuple of its outputs, all on `device`.

    `operator` maps an operator's name to what is called. Names from the graph never get into the code that fx
    generates: values become v0, v1, ... and weights w0, w1, ... Raises `RepositoryError` for a missing weight or an
    operator that is not allowed.
    """
    root, fx = nn.Module(), FxGraph()
    made = {spec.name: fx.placeholder(f"x{position}") for position, spec in enumerate(graph.inputs)}
    stored: dict[str, FxNode] = {}
    for position, name in enumerate(graph.weights()):
        if name not in weights:
            raise RepositoryError(
                f"the graph reads the weight {name!r}, which the weights file does not have: build again"
            )
        root.register_buffer(f"w{position}", weights[name].detach())
        stored[name] = fx.get_attr(f"w{position}")

    def torch_argument(argument: Argument) -> TorchArgument:
        match argument:
            case Value(name):
                return made[name]
            case Weight(name):
                return stored[name]
            case Constant("device"):
                return torch.device(device)  # graphs are exported on the CPU and name it for the constants they create
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


def torch_constant(constant: Constant) -> torch.dtype | torch.device | torch.layout | torch.memory_format:
    """Return the torch object for a constant read from a file."""
    if constant.kind == "device":
        return torch.device(constant.name)
    found: torch.dtype | torch.layout | torch.memory_format = getattr(torch, constant.name)
    return found


def copy_input_views(outputs: tuple[Tensor, ...], inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the outputs; those that are views of an input, which its owner may overwrite, are copied."""
    owned = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    return tuple(t.clone() if t.untyped_storage().data_ptr() in owned else t for t in outputs)


def in_eager(graph: Graph, weights: Mapping[str, Tensor]) -> StageFunction:
    """Return a call that computes the graph operator by operator with torch: the reference for every backend."""
    if graph.buckets:
        return by_bucket(graph, partial(in_eager, weights=weights))
    module = rebuild(graph, weights)  # takes as long as many calls of a small graph

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        with torch.inference_mode():
            found: tuple[Tensor, ...] = module(*inputs)
        return found

    return run


def in_float64(graph: Graph, weights: Mapping[str, Tensor]) -> StageFunction:
    """Return a call that computes the graph's outputs in float64, which tells a difference from rounding."""
    if graph.buckets:
        return by_bucket(graph, partial(in_float64, weights=weights))

    def in_double(argument: Argument) -> Argument:
        if isinstance(argument, Constant) and argument.kind == "dtype":
            return replace(argument, name=WIDER.get(argument.name, argument.name))
        return argument

    nodes = tuple(node.map_arguments(in_double) for node in graph.nodes)
    run = in_eager(replace(graph, nodes=nodes), {name: _widened(weights[name]) for name in graph.weights()})
    return lambda *inputs: run(*map(_widened, inputs))


def _widened(tensor: Tensor) -> Tensor:
    wider = WIDER.get(str(tensor.dtype).removeprefix("torch."))
    return tensor if wider is None else tensor.to(getattr(torch, wider))
