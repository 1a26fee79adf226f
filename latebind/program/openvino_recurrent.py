"""LSTM and GRU layers for OpenVINO, which converts neither from exported graphs: one operator for all steps of a layer.

A conversion written in Python returns one result, while torch's operators return a tuple. So each result of a recurrent
operator becomes a node of its own in the graph (`with_single_results`), and the results of one operator share what was
made for the first.
"""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import GraphModule

from latebind.domain.errors import ExportError

Foreign = Any  # an object of OpenVINO, which comes without types
Array = NDArray[Any]

# The gates in OpenVINO's order, as indices into torch's weights.
LSTM_GATES = (1, 0, 2, 3)  # forget, input, cell, output; torch has input first
GRU_GATES = (1, 0, 2)  # update, reset, new; torch has reset first


def lstm_result(*arguments: object) -> Foreign:
    """Stand for one result of an LSTM in a graph that is converted and never run.

    The arguments are the number of the LSTM, the index of the result, and the LSTM's own arguments.
    """
    raise TypeError("this stands for a result in a graph that is converted and never run")


def gru_result(*arguments: object) -> Foreign:
    """Stand for one result of a GRU, likewise."""
    raise TypeError("this stands for a result in a graph that is converted and never run")


RESULTS: dict[object, Callable[..., Foreign]] = {
    torch.ops.aten.lstm.input: lstm_result,
    torch.ops.aten.gru.input: gru_result,
}


def with_single_results(module: GraphModule) -> GraphModule:
    """Change the graph of `module` to have a node for each result of each recurrent operator, and return it.

    Raises `ExportError` if some node takes all results at once.
    """
    graph = module.graph
    for number, node in enumerate(list(graph.nodes)):
        result = RESULTS.get(node.target)
        if result is None:
            continue
        for user in list(node.users):
            if user.target is not operator.getitem:
                raise ExportError(f"{user} takes all results of {node} at once, which OpenVINO cannot convert")
            with graph.inserting_before(node):
                user.replace_all_uses_with(graph.call_function(result, (number, user.args[1], *node.args)))
            graph.erase_node(user)
        graph.erase_node(node)
    return module


def conversions() -> list[Foreign]:
    """Return the frontend extensions that convert one such module."""
    from openvino.frontend.pytorch import ConversionExtension

    made: dict[int, list[Foreign]] = {}

    def converting(layer: Callable[["_Layer"], Foreign], gates: Sequence[int]) -> Callable[[Foreign], list[Foreign]]:
        def convert(node: Foreign) -> list[Foreign]:
            number, place = (node.get_values_from_const_input(at) for at in range(2))
            if number not in made:
                made[number] = _layers(node, layer, gates)
            return [made[number][place]]

        return convert

    return [
        ConversionExtension(str(lstm_result), converting(_lstm, LSTM_GATES)),
        ConversionExtension(str(gru_result), converting(_gru, GRU_GATES)),
    ]


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer: rows `(B, L, inputs)`, states `(B, directions, hidden)`, lengths `(B,)` and weights as numpy arrays.

    `take` is `(directions, gates * hidden, inputs)`, `recur` `(directions, gates * hidden, hidden)`, `biases`
    `(directions, 2, gates, hidden)`: those of the rows and those of the state.
    """

    rows: Foreign
    states: list[Foreign]
    lengths: Foreign
    take: Array
    recur: Array
    biases: Array
    direction: str


def _lstm(layer: _Layer) -> Foreign:
    from openvino import opset13 as ops

    biases = layer.biases.sum(axis=1).reshape(len(layer.take), -1)
    weights = map(ops.constant, (layer.take, layer.recur, biases))
    return ops.lstm_sequence(layer.rows, *layer.states, layer.lengths, *weights, layer.recur.shape[2], layer.direction)


def _gru(layer: _Layer) -> Foreign:
    """Keep the state's bias of the new gate apart, because it is multiplied by the reset gate."""
    from openvino import opset13 as ops

    both = layer.biases.sum(axis=1)
    biases = np.concatenate((both[:, :2], layer.biases[:, :, 2]), axis=1).reshape(len(layer.take), -1)
    weights = map(ops.constant, (layer.take, layer.recur, biases))
    return ops.gru_sequence(
        layer.rows,
        *layer.states,
        layer.lengths,
        *weights,
        layer.recur.shape[2],
        layer.direction,
        linear_before_reset=True,
    )


def _layers(node: Foreign, layer: Callable[[_Layer], Foreign], gates: Sequence[int]) -> list[Foreign]:
    """Convert the operator: return the outputs of all steps and the last states, in torch's shapes.

    Its arguments are `(rows, states, weights, settings ...)`; the settings are those of torch's operators: has_biases,
    num_layers, dropout, train, bidirectional, batch_first.
    """
    from openvino import opset13 as ops

    rows, states, weights = (node.get_input(at) for at in range(2, 5))
    has_biases, layers, _, _, both_ways, batch_first = (node.get_values_from_const_input(at) for at in range(5, 11))
    directions = 2 if both_ways else 1
    states = _parts(states) if states.get_node().get_type_name() == "SequenceMark" else [states]
    params = [part.get_node().get_data() for part in _parts(weights)]
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
        found = layer(
            _Layer(given, before, lengths, *_arranged(mine, gates), "bidirectional" if both_ways else "forward")
        )
        steps = ops.transpose(found.output(0), axes["front"])
        given = ops.reshape(steps, ops.constant(np.array([0, 0, -1])), special_zero=True).output(0)
        for end, state in zip(ends, found.outputs()[1:], strict=True):
            end.append(ops.transpose(state, axes["swap"]))
    outputs = given if batch_first else ops.transpose(given, axes["swap"]).output(0)
    return [outputs, *(ops.concat(end, 0).output(0) for end in ends)]


def _parts(sequence: Foreign) -> list[Foreign]:
    """Return the elements of a list in the graph."""
    return list(sequence.get_node().input_values())


def _arranged(params: Sequence[Sequence[Array]], gates: Sequence[int]) -> tuple[Array, Array, Array]:
    """Return the weights of both directions of a layer, gates in OpenVINO's order; missing biases are 0."""
    order = list(gates)

    def by_gate(array: Array) -> Array:
        return array.reshape(len(order), -1, *array.shape[1:])[order]

    take, recur = (np.stack([by_gate(one[at]).reshape(one[at].shape) for one in params]) for at in range(2))
    hidden = recur.shape[2]
    none = np.zeros(len(order) * hidden, take.dtype)
    biases = np.stack([[by_gate(bias) for bias in (one[2:] or (none, none))] for one in params])
    return take, recur, biases
