"""A graph as an OpenVINO model, converted in memory by its frontend for torch.

What follows from whole numbers alone is not part of the model: it is computed first (`numeric`).
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from math import inf

import numpy as np
import openvino
import torch
from openvino import opset13 as ops
from openvino.frontend import (
    FrontEndManager,
    GeneralFailure,
    NotImplementedFailure,
    OpConversionFailure,
    OpValidationFailure,
)
from openvino.frontend.pytorch import ConversionExtension
from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder
from torch import Tensor
from torch.fx import GraphModule

from latebind.domain.errors import ExportError
from latebind.program.arrays import Array
from latebind.program.eager import rebuild
from latebind.program.graph import Graph, Node, TensorType, Value, flat
from latebind.program.openvino import Converted, Foreign
from latebind.program.operators import VIEW, resolve
from latebind.program.packing import packed
from latebind.program.whole_numbers import MOVED, operation, split_whole_numbers

# The gates in OpenVINO's order, as indices into torch's weights.
LSTM_GATES = (1, 0, 2, 3)  # forget, input, cell, output; torch has input first
GRU_GATES = (1, 0, 2)  # update, reset, new; torch has reset first
ATTENTION = "aten.scaled_dot_product_attention.default"


def converted(graph: Graph, weights: Mapping[str, Tensor], *, packs: bool) -> Converted:
    """Return a graph as an OpenVINO model, whose constants share the memory of the weights.

    If it `packs`, it takes the places of words too, if that gains anything. Raises `ExportError` if OpenVINO has no
    conversion for an operator of the graph, or is not sure to compute with whole numbers as torch does.
    """
    graph = _with_masked_rows(graph)
    parts = split_whole_numbers(graph, weights)
    if parts.unsure:
        raise ExportError(parts.unsure)
    below = packed(parts.rest, weights, graph.inputs) if packs else None
    axis = None if below is None else graph.axes[below.dims[0].name]
    graph = below or parts.rest
    sources = {spec.name: position for position, spec in enumerate(graph.inputs)}
    copied = {place: sources[value] for place, (_, value) in enumerate(graph.outputs) if value in sources}
    model = None
    if len(copied) < len(graph.outputs):
        model = _convert(graph, rebuild(graph, weights, operator=resolve))  # it converts views, not reshapes
        kept = [output.get_node().input_value(0) for place, output in enumerate(model.outputs) if place not in copied]
        model = openvino.Model(kept, model.get_parameters())  # results that are inputs would share their memory
    return Converted(
        model=model,
        inputs=graph.inputs,
        outputs=tuple(spec for place, spec in enumerate(graph.output_specs()) if place not in copied),
        copied=copied,
        first=parts.first,
        checked=parts.checked,
        axes=parts.axes,
        axis=axis,
        sized=bool(graph.dims),
        weight_bytes=sum(weights[name].nbytes for name in graph.weights()),
    )


def _convert(graph: Graph, module: GraphModule) -> Foreign:
    sizes = [spec.sizes or spec.shape for spec in graph.inputs]
    shapes = [openvino.PartialShape([-1, *(size if isinstance(size, int) else -1 for size in own)]) for own in sizes]
    if any(spec.dtype == "bfloat16" for spec in (*graph.inputs, *graph.output_specs())):
        raise ExportError("OpenVINO takes and gives no bfloat16 here: leave that backend out")
    dtypes = [getattr(torch, spec.dtype) for spec in graph.inputs]
    front = FrontEndManager().load_by_framework("pytorch")
    own = {"aten.matmul.default": _matmul, str(reshaped): _reshaped, **_recurrent()}
    for name, conversion in own.items():
        front.add_extension(ConversionExtension(name, conversion))
    module = _with_single_results(_with_known_shapes(graph, module))
    decoder = TorchFXPythonDecoder(module, input_shapes=shapes, input_types=dtypes)  # must outlive the conversion
    try:
        return front.convert(front.load(decoder))
    except (RuntimeError, GeneralFailure, NotImplementedFailure, OpConversionFailure, OpValidationFailure) as error:
        reason = " ".join(str(error).split())[-300:]
        raise ExportError(f"OpenVINO cannot convert this model: {reason}; leave that backend out") from error


def _with_masked_rows(graph: Graph) -> Graph:
    """Return the graph with 0 for rows that attend to nothing, as in torch: OpenVINO gives NaN there.

    Whether there is such a row follows from the mask, which is the same for all blocks, so it is computed once, first.
    A mask added to the scores hides by minus infinity, as that of nn.TransformerEncoder does, or hides no row entirely.
    """
    types, nodes, whole = graph.types(), list[Node](), dict[str, str]()
    made = {node.name: node for node in graph.nodes}
    for node in graph.nodes:
        mask = node.args[3] if node.op == ATTENTION and len(node.args) > 3 else None
        kind = types.get(mask.name) if isinstance(mask, Value) else None
        if not isinstance(mask, Value) or kind is None or node.type is None or not _hides(made, mask.name, kind):
            nodes.append(node)
            continue
        if mask.name not in whole:
            seen, some, whole[mask.name] = mask.name, f"{mask.name}.some", f"{mask.name}.none"
            each = TensorType("bool", (*kind.shape[:-1], 1))
            if kind.dtype != "bool":
                seen = f"{mask.name}.seen"
                nodes.append(Node(seen, "aten.ne.Scalar", (mask, -inf), (), TensorType("bool", kind.shape)))
            nodes.append(Node(some, "aten.any.dim", (Value(seen), -1, True), (), each))
            nodes.append(Node(whole[mask.name], "aten.logical_not.default", (Value(some),), (), each))
        nodes.append(replace(node, name=f"{node.name}.any"))
        filled = (Value(f"{node.name}.any"), Value(whole[mask.name]), 0.0)
        nodes.append(Node(node.name, "aten.masked_fill.Scalar", filled, (), node.type))
    return replace(graph, nodes=tuple(nodes))


def _hides(nodes: Mapping[str, Node], mask: str, kind: TensorType) -> bool:
    """Return whether a mask may hide everything from a row: it is boolean, or adds -inf at some places."""
    while kind.dtype != "bool":
        node = nodes.get(mask)
        if node is None or node.op.startswith("aten.masked_fill."):
            return node is not None and node.args[2] == -inf
        if operation(node) not in MOVED or not isinstance(node.args[0], Value):
            return False
        mask = node.args[0].name
    return True


def _matmul(node: Foreign) -> list[Foreign]:
    """Convert the matrix product as one operator; the frontend converts it into several.

    One of them broadcasts both sides over the batch. It has no effect, but with a dynamic batch OpenVINO cannot know
    that, and copies everything that a step of a Transformer has written and read.
    """
    return [ops.matmul(node.get_input(0), node.get_input(1), False, False).output(0)]


def reshaped(*arguments: object) -> Foreign:
    """Stand for a view: its arguments are what is viewed, and its sizes, 0 for one that stays unchanged."""
    raise TypeError("this stands for a view in a graph that is converted and never run")


def _with_known_shapes(graph: Graph, module: GraphModule) -> GraphModule:
    """Change the views of `module`, which is rebuilt from `graph`, to have the sizes that do not vary; return it.

    Otherwise their sizes follow from those of inputs, and OpenVINO knows none of them before it runs: with rows of
    another length each time, MiniLM took 6 % longer.
    """
    types = graph.types()
    calls = [call for call in module.graph.nodes if call.op == "call_function"]
    for node, call in zip(graph.nodes, calls, strict=True):
        if node.op != VIEW or node.type is None or not any(isinstance(size, Value) for size in flat(node.args[1:])):
            continue
        source = types[node.args[0].name].shape if isinstance(node.args[0], Value) else ()
        sizes = [
            size if isinstance(size, int) else 0 if size == before else -1
            for size, before in zip(node.type.shape, (*source, *repeat(1, len(node.type.shape))), strict=False)
        ]
        if sizes.count(-1) < 2 and 0 not in node.type.shape:
            with module.graph.inserting_before(call):
                known = module.graph.call_function(reshaped, (call.args[0], *sizes))
            call.replace_all_uses_with(known)
            module.graph.erase_node(call)
    return module


def _reshaped(node: Foreign) -> list[Foreign]:
    """Convert a view whose sizes are known, except those that stay and one that follows from the others."""
    sizes = [node.get_values_from_const_input(at) for at in range(1, node.get_input_size())]
    return [ops.reshape(node.get_input(0), ops.constant(np.array(sizes, np.int64)), special_zero=True).output(0)]


# OpenVINO converts neither LSTM nor GRU layers from exported graphs: here each layer is one operator for all steps. A
# conversion written in Python returns one result, while torch's operators return a tuple. So each result of a recurrent
# operator becomes a node of its own in the graph, and all results of one operator share what was made for the first.


def lstm_result(*arguments: object) -> Foreign:
    """Stand for one result of an LSTM: the arguments are the LSTM's number, the result's index, the LSTM's own."""
    raise TypeError("this stands for a result in a graph that is converted and never run")


def gru_result(*arguments: object) -> Foreign:
    """Stand for one result of a GRU, likewise."""
    raise TypeError("this stands for a result in a graph that is converted and never run")


def _with_single_results(module: GraphModule) -> GraphModule:
    """Change the graph of `module` to have a node for each result of each recurrent operator, and return it.

    Raises `ExportError` if some node takes all results at once.
    """
    graph = module.graph
    results = {torch.ops.aten.lstm.input: lstm_result, torch.ops.aten.gru.input: gru_result}
    for number, node in enumerate(list(graph.nodes)):
        if node.target not in results:
            continue
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise ExportError(f"{user} takes all results of {node} at once, which OpenVINO cannot convert")
            with graph.inserting_before(node):
                one = graph.call_function(results[node.target], (number, user.args[1], *node.args))
            user.replace_all_uses_with(one)
            graph.erase_node(user)
        graph.erase_node(node)
    return module


def _recurrent() -> dict[str, Callable[[Foreign], list[Foreign]]]:
    """Return the conversions of the results, by operator, for one module."""
    made: dict[int, list[Foreign]] = {}

    def convert(gates: Sequence[int], node: Foreign) -> list[Foreign]:
        number, place = (node.get_values_from_const_input(at) for at in range(2))
        if number not in made:
            made[number] = _layers(node, gates)
        return [made[number][place]]

    return {str(lstm_result): partial(convert, LSTM_GATES), str(gru_result): partial(convert, GRU_GATES)}


def _layers(node: Foreign, gates: Sequence[int]) -> list[Foreign]:
    """Convert the operator: return the outputs of all steps and the last states, in torch's shapes.

    Its arguments are `(rows, states, weights, settings ...)`; the settings are those of torch's operators: has_biases,
    num_layers, dropout, train, bidirectional, batch_first.
    """
    rows, states, weights = (node.get_input(at) for at in range(2, 5))
    has_biases, layers, _, _, both_ways, batch_first = (node.get_values_from_const_input(at) for at in range(5, 11))
    directions = 2 if both_ways else 1
    is_list = states.get_node().get_type_name() == "SequenceMark"
    states = list(states.get_node().input_values()) if is_list else [states]
    params = [part.get_node().get_data() for part in weights.get_node().input_values()]
    each = len(params) // (layers * directions)
    if each != (4 if has_biases else 2):
        raise ValueError("recurrent layers with projections are not converted")
    axes = {name: ops.constant(np.array(value)) for name, value in (("swap", (1, 0, 2)), ("front", (0, 2, 1, 3)))}
    given = rows if batch_first else ops.transpose(rows, axes["swap"]).output(0)
    shape = ops.shape_of(given)
    first, second = (ops.gather(shape, ops.constant(np.array([at])), ops.constant(0)) for at in range(2))
    lengths = ops.broadcast(second, first)
    ends: list[list[Foreign]] = [[] for _ in states]
    for number in range(layers):
        at = number * directions
        mine = [params[each * place : each * (place + 1)] for place in range(at, at + directions)]
        numbers = ops.constant(np.arange(at, at + directions))
        before = [ops.transpose(ops.gather(state, numbers, ops.constant(0)), axes["swap"]) for state in states]
        take, recur, biases = _arranged(mine, gates)
        weights = map(ops.constant, (take, recur, biases))
        settings = recur.shape[2], "bidirectional" if both_ways else "forward"
        if gates == LSTM_GATES:
            found = ops.lstm_sequence(given, *before, lengths, *weights, *settings)
        else:
            found = ops.gru_sequence(given, *before, lengths, *weights, *settings, linear_before_reset=True)
        steps = ops.transpose(found.output(0), axes["front"])
        given = ops.reshape(steps, ops.constant(np.array([0, 0, -1])), special_zero=True).output(0)
        for end, state in zip(ends, found.outputs()[1:], strict=True):
            end.append(ops.transpose(state, axes["swap"]))
    outputs = given if batch_first else ops.transpose(given, axes["swap"]).output(0)
    return [outputs, *(ops.concat(end, 0).output(0) for end in ends)]


def _arranged(params: Sequence[Sequence[Array]], gates: Sequence[int]) -> tuple[Array, Array, Array]:
    """Return the weights of both directions of a layer, gates in OpenVINO's order; missing biases are 0.

    They are `(directions, gates * hidden, inputs)`, `(directions, gates * hidden, hidden)` and `(directions, gates *
    hidden)`. A GRU keeps the state's bias of the new gate separate, because it is multiplied by the reset gate.
    """

    def by_gate(array: Array) -> Array:
        return array.reshape(len(gates), -1, *array.shape[1:])[list(gates)]

    take, recur = (np.stack([by_gate(one[at]).reshape(one[at].shape) for one in params]) for at in range(2))
    none = np.zeros(len(gates) * recur.shape[2], take.dtype)
    biases = np.stack([[by_gate(bias) for bias in (one[2:] or (none, none))] for one in params])
    both = biases.sum(axis=1)
    if gates == GRU_GATES:
        both = np.concatenate((both[:, :2], biases[:, :, 2]), axis=1)
    return take, recur, both.reshape(len(take), -1)
