"""The OpenVINO backends: conversion in memory, and a call with as little Python as possible."""

import ctypes
import operator
import sys
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.graph import Graph

Foreign = Any  # an object of OpenVINO, which comes without types
Request = tuple[Foreign, Foreign]  # a compiled model, and an inference request of it
First = Callable[..., tuple[Tensor, ...]]  # what torch computes before OpenVINO does

PAGE = 4096
SHARED_FROM = 1 << 20  # bytes of weights from which twins that run at the same time may share them: `_options`


@dataclass(frozen=True, slots=True)
class Port:
    """The memory layout of an input or output: `(B, H, W, C)` if `channels_last`, else contiguous."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    channels_last: bool

    @property
    def flat_shape(self) -> tuple[int, ...]:
        """The shape of one row as the OpenVINO model sees it."""
        return (prod(self.shape), 1, 1) if self.channels_last else self.shape


def port_of(spec: TensorSpec) -> Port:
    """Choose the memory layout of an input or output.

    OpenVINO computes convolutions channels last and converts its outputs to contiguous, in 5 microseconds for 32x16x16
    floats but in 50 for 16x32x32: planes of a multiple of 4 KiB fall on the same lines of the first-level cache. Such
    activations stay channels last; torch sees `(B, C, H, W)` with other strides.
    """
    shape = spec.shape
    wide = len(shape) == 3 and shape[0] % 16 == 0 and shape[1] == shape[2]
    aliased = wide and spec.dtype == "float32" and shape[1] * shape[2] * 4 % PAGE == 0
    return Port(shape, getattr(torch, spec.dtype), aliased)


def compile_with_openvino(
    graph: Graph,
    module: GraphModule,
    *,
    first: First | None = None,
    threads: int,
    precision: str,
    sizes: Sequence[int] = (1,),
    streams: int = 1,
    copies: bool = False,
    frugal: bool = False,
) -> Callable[..., tuple[Tensor, ...]]:
    """Return the graph compiled for the CPU, for batches of these `sizes` and for any other size.

    What `first` makes of the inputs is what the graph takes. `precision` is
    "f32" or "bf16". `streams` of its twins may run at the same time, over the same weights unless each is to have
    `copies`. If `frugal`, nothing of a batch of several rows is kept behind its run but the outputs. Raises
    `ExportError` if OpenVINO has no conversion for an operator of the graph.
    """
    import openvino

    large = sum(weight.nbytes for weight in module.buffers()) >= SHARED_FROM
    shared = streams == 1 or (large and not copies)
    options = _options(threads, precision, streams if shared else 1)
    sources = {spec.name: position for position, spec in enumerate(graph.inputs)}
    copied = {place: sources[value] for place, (_, value) in enumerate(graph.outputs) if value in sources}
    if len(copied) == len(graph.outputs):
        return lambda *tensors: tuple(_taken(first, tensors)[source].clone() for source in copied.values())
    inputs = tuple(port_of(spec) for spec in graph.inputs)
    outputs = tuple(port_of(spec) for place, spec in enumerate(graph.output_specs()) if place not in copied)
    model = _with_ports(_convert(graph, module), inputs, outputs, leave_out=copied)
    core = openvino.Core()

    def bound() -> BoundRequest:
        if shared:
            return BoundRequest(partial(_request, _compiled(core, model, options)), inputs, outputs, frugal)
        own = model.clone()  # keeps the current batch size
        return BoundRequest(lambda: _request(_compiled(core, own, options)), inputs, outputs, frugal)

    def sized(size: int) -> BoundRequest:
        model.reshape({position: [size, *port.flat_shape] for position, port in enumerate(inputs)})
        return bound()

    dynamic = bound()
    return OpenVinoStage({size: sized(size) for size in sizes}, dynamic, copied, first)


class _SignalStack(ctypes.Structure):
    """`stack_t` of Linux: the memory on which a thread handles signals."""

    _fields_ = (("start", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


def _compiled(core: Foreign, model: Foreign, options: Mapping[str, object]) -> Foreign:
    """Return a model compiled for the CPU, and leave this thread with the stack for signals that it had.

    A core gives the thread that first compiles with it another one (OpenVINO's pull request 11894), and on its end
    gives back the one before. Where cores end in the order they came, the thread has the stack of one that is gone,
    and its next signal ends the process. One core for all models would be simpler, but a process of many models ended
    by a segmentation fault within OpenVINO with it.
    """
    if sys.platform != "linux":
        return core.compile_model(model, "CPU", options)
    own, system = _SignalStack(), ctypes.CDLL(None)
    system.sigaltstack(None, ctypes.byref(own))
    try:
        return core.compile_model(model, "CPU", options)
    finally:
        system.sigaltstack(ctypes.byref(own), None)


def _taken(first: First | None, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return what a graph takes: what `first`, if there is one, makes of the inputs."""
    if first is None:
        return inputs
    with torch.inference_mode():
        return first(*inputs)


def _options(threads: int, precision: str, streams: int) -> dict[str, object]:
    """Return the properties of a compiled model of which `streams` requests may run at the same time.

    A single stream runs on the calling thread. With more, each call is handed to a thread of OpenVINO, which takes 50
    to 130 microseconds if a core is idle, whatever the properties, and far more if none is (`copies.py`). A small
    model, or one with `copies`, is compiled once for each twin instead.

    Threads stay unpinned. OpenVINO pins its own to the first cores, but not the calling thread, so both may wait for
    one core while another is idle. Two models that run at the same time would get the same cores.
    """
    return {
        "INFERENCE_NUM_THREADS": threads * streams,
        "INFERENCE_PRECISION_HINT": precision,
        "NUM_STREAMS": streams,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }


def _convert(graph: Graph, module: GraphModule) -> Foreign:
    from openvino import PartialShape
    from openvino.frontend import (
        FrontEndManager,
        GeneralFailure,
        NotImplementedFailure,
        OpConversionFailure,
        OpValidationFailure,
    )
    from openvino.frontend.pytorch.fx_decoder import TorchFXPythonDecoder

    shapes = [PartialShape([-1, *spec.shape]) for spec in graph.inputs]
    dtypes = [getattr(torch, spec.dtype) for spec in graph.inputs]
    front = FrontEndManager().load_by_framework("pytorch")
    for conversion in (_matmul(), *conversions()):
        front.add_extension(conversion)
    module = with_single_results(module)
    decoder = TorchFXPythonDecoder(module, input_shapes=shapes, input_types=dtypes)  # must outlive the conversion
    try:
        return front.convert(front.load(decoder))
    except (RuntimeError, GeneralFailure, NotImplementedFailure, OpConversionFailure, OpValidationFailure) as error:
        reason = " ".join(str(error).split())[-300:]
        raise ExportError(f"OpenVINO cannot convert this model: {reason}; leave that backend out") from error


def _matmul() -> Foreign:
    """Return a conversion of the matrix product, which the frontend only converts in parts.

    Among the parts is one that broadcasts both sides over the batch. It has no effect, but with a dynamic batch
    OpenVINO cannot know that, and copies all that a step of a Transformer has written and read.
    """
    from openvino import opset13 as operators
    from openvino.frontend.pytorch import ConversionExtension

    def convert(node: Foreign) -> list[Foreign]:
        return [operators.matmul(node.get_input(0), node.get_input(1), False, False).output(0)]

    return ConversionExtension("aten.matmul.default", convert)


def _with_ports(
    model: Foreign, inputs: tuple[Port, ...], outputs: tuple[Port, ...], *, leave_out: Container[int]
) -> Foreign:
    """Apply the layouts of the ports, and drop results that are unchanged inputs (OpenVINO would share their memory).

    Channels-last tensors are passed as `(B, H * W * C, 1, 1)`, for which both layouts are the same: space-to-depth with
    blocks as large as the image writes exactly that, with a fast kernel (2 microseconds). OpenVINO's own transposition
    costs as much as what this avoids.
    """
    from openvino import Model, PartialShape
    from openvino import opset13 as operators

    parameters = list(model.get_parameters())
    for position, port in enumerate(inputs):
        if port.channels_last:
            old = parameters[position]
            new = operators.parameter(PartialShape([-1, *port.flat_shape]), old.get_element_type())
            image = operators.depth_to_space(new, "blocks_first", port.shape[1])
            old.output(0).replace(image.output(0))
            parameters[position] = new
    kept = [output for place, output in enumerate(model.outputs) if place not in leave_out]
    results = [output.get_node().input_value(0) for output in kept]
    for position, port in enumerate(outputs):
        if port.channels_last:
            results[position] = operators.space_to_depth(results[position], "blocks_first", port.shape[1]).output(0)
    return Model(results, parameters)


class OpenVinoStage:
    """A graph as several inference requests: one for each batch size that was compiled for, one for any other.

    A dynamic batch dimension costs about 3 microseconds for every operator of the graph, whatever its size: 8 % of
    ResNet-56 and half of a lookup at batch 1, a third of a decoder's step. The price of fixed sizes is a copy of the
    weights for each.
    """

    def __init__(
        self,
        fixed: Mapping[int, "BoundRequest"],
        dynamic: "BoundRequest",
        copied: Mapping[int, int],
        first: First | None,
    ) -> None:
        self._fixed = fixed
        self._dynamic = dynamic
        self._copied = copied
        self._first = first

    def twin(self) -> "OpenVinoStage":
        """Return the same stage for another thread, with inference requests of its own."""
        fixed = {size: request.twin() for size, request in self._fixed.items()}
        return OpenVinoStage(fixed, self._dynamic.twin(), self._copied, self._first)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the stage; the outputs are valid until the next call.

        `copied` says which outputs are unchanged inputs, or what `first` has made of these.
        """
        inputs = _taken(self._first, inputs)
        found = self._fixed.get(inputs[0].shape[0], self._dynamic).run(inputs)
        if not self._copied:
            return tuple(found)
        found = list(found)
        for position, source in self._copied.items():
            found.insert(position, inputs[source].clone())
        return tuple(found)


class BoundRequest:
    """An inference request bound to torch's memory, so that nothing is copied.

    Outputs are in buffers of its own and valid until the next run. Binding new memory at each run, which comes cold
    from the allocator, costs more than everything else at a cut (ResNet-56 in 4 stages at batch 1: 13 % over the uncut
    model, 5 % with buffers kept).
    """

    def __init__(
        self, create: Callable[[], Request], inputs: tuple[Port, ...], outputs: tuple[Port, ...], frugal: bool
    ) -> None:
        from openvino import Tensor as OvTensor

        self._create = create
        self._compiled, self._request = create()
        self._frugal = frugal
        self._wrap = OvTensor
        self._inputs = inputs
        self._outputs = outputs
        self._batch = 0  # the batch size bound now
        self._bound: list[Tensor | None] = [None] * len(inputs)
        self._buffers = [torch.empty(0, *port.flat_shape, dtype=port.dtype) for port in outputs]
        self._found: list[Tensor] = []

    def twin(self) -> "BoundRequest":
        """Return another request, with buffers of its own."""
        return BoundRequest(self._create, self._inputs, self._outputs, self._frugal)

    def run(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Run the request; the outputs are views of the buffers."""
        batch = inputs[0].shape[0]
        for position, (tensor, port) in enumerate(zip(inputs, self._inputs, strict=True)):
            self._bind_input(position, _to_border(tensor, port), rebind=batch != self._batch)
        if batch != self._batch:
            self._bind_outputs(batch)
            self._batch = batch
        self._request.infer()
        if self._frugal and batch > 1:
            self._give_back()
        return self._found

    def _give_back(self) -> None:
        """Give back what the run took: a request would keep room for the largest batch that it ever ran.

        ResNet-56 in seven stages kept 49 MB behind a batch of 32, and 16 MB of these for outputs and inputs alone; one
        run after another, it takes no longer.
        """
        self._bound = [None] * len(self._inputs)
        with suppress(RuntimeError):  # a twin runs at the moment, and gives back behind its own run
            self._compiled.release_memory()

    def _bind_input(self, position: int, tensor: Tensor, *, rebind: bool) -> None:
        bound = self._bound[position]
        if rebind or bound is None or bound.data_ptr() != tensor.data_ptr():
            self._request.set_input_tensor(position, self._wrap(tensor.numpy(), shared_memory=True))
            self._bound[position] = tensor  # OpenVINO does not keep it alive

    def _bind_outputs(self, batch: int) -> None:
        """Bind the first `batch` rows of the buffers; allocate larger buffers if necessary."""
        if self._buffers and batch > self._buffers[0].shape[0]:
            shapes = [(batch, *port.flat_shape) for port in self._outputs]
            self._buffers = [torch.empty(s, dtype=p.dtype) for s, p in zip(shapes, self._outputs, strict=True)]
        made = [buffer[:batch] for buffer in self._buffers]
        for position, tensor in enumerate(made):
            self._request.set_output_tensor(position, self._wrap(tensor.numpy(), shared_memory=True))
        self._found = list(map(_from_border, made, self._outputs))


def _request(compiled: Foreign) -> Request:
    return compiled, compiled.create_infer_request()


def _to_border(tensor: Tensor, port: Port) -> Tensor:
    if not port.channels_last:
        return tensor.contiguous()
    return tensor.permute(0, 2, 3, 1).contiguous().view(-1, *port.flat_shape)


def _from_border(tensor: Tensor, port: Port) -> Tensor:
    if not port.channels_last:
        return tensor
    channels, height, width = port.shape
    return tensor.view(-1, height, width, channels).permute(0, 3, 1, 2)


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
