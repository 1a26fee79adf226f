"""The OpenVINO backends: conversion in memory, and a call with as little Python as possible."""

import ctypes
import operator
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat
from math import inf
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.fx import GraphModule

from latebind.domain.errors import ExportError
from latebind.domain.model import TensorSpec
from latebind.program.backends import Backend, CompileOptions, StageFunction
from latebind.program.device import HOST
from latebind.program.eager import rebuild
from latebind.program.graph import Graph, Node, TensorType, Value, flat
from latebind.program.operators import VIEW, resolve
from latebind.program.packing import LINEAR, packed, places, places_of_full
from latebind.program.whole_numbers import MOVED, Ahead, operation, split_whole_numbers

try:  # an optional dependency
    import openvino
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
except ImportError:
    openvino = None

Foreign = Any  # an object of OpenVINO, which comes without types
Array = NDArray[Any]

# The gates in OpenVINO's order, as indices into torch's weights.
LSTM_GATES = (1, 0, 2, 3)  # forget, input, cell, output; torch has input first
GRU_GATES = (1, 0, 2)  # update, reset, new; torch has reset first
ATTENTION = "aten.scaled_dot_product_attention.default"
SHARED_FROM = 1 << 20  # bytes of weights from which twins that run at the same time may share them: `_options`
GROUP = 64  # numbers that are rounded together; with 32, MiniLM takes 1.06 to 1.2 times as long, with 128 0.91 to 0.97
LARGEST, TINIEST = 127, np.float32(1e-30)  # of a weight in eight bits, and of a scale
USUAL = 3  # deviations from the mean that numbers behind a layer norm seldom exceed


class OpenVino(Backend):
    """OpenVINO on the CPU, computing in float32."""

    fixed = True
    compiles = True
    copies_weights = True
    packs = True
    precision = "f32"

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Check for OpenVINO, which is an optional dependency and only used on CPUs."""
        if device != HOST.type:
            return f"OpenVINO computes on the CPU, not on {device}: use --backend eager or compile, or --device cpu"
        return None if openvino is not None else "OpenVINO is not installed: pip install 'latebind[openvino]'"

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        """Convert the graph in memory and compile it, for batches of these sizes and for any other.

        What follows from whole numbers alone, torch computes first. Raises `ExportError` if OpenVINO has no conversion
        for an operator of the graph, or is not sure to compute with whole numbers as torch does.
        """
        graph = _with_masked_rows(graph)
        parts = split_whole_numbers(graph, weights)
        if parts.unsure:
            raise ExportError(parts.unsure)
        read = () if parts.first is None else parts.first.weights()
        first = parts.ahead({name: weights[name].clone() for name in read})  # their pages may be given back
        below = packed(parts.rest, weights, graph.inputs) if use.packs else None
        axis = None if below is None else graph.axes[below.dims[0].name]
        graph = below or parts.rest
        module = rebuild(graph, weights, operator=resolve)  # it converts no reshapes, but views
        large = sum(weight.nbytes for weight in module.buffers()) >= SHARED_FROM
        shared = use.streams == 1 or (large and not use.copies)
        options = {**_options(use.threads, use.streams if shared else 1), **self.properties()}
        sources = {spec.name: position for position, spec in enumerate(graph.inputs)}
        copied = {place: sources[value] for place, (_, value) in enumerate(graph.outputs) if value in sources}
        if len(copied) == len(graph.outputs):

            def stage(*given: Tensor) -> tuple[Tensor, ...]:
                found = given if first is None else first(*given)
                return tuple(found[source].clone() for source in copied.values())

            return stage
        outputs = tuple(spec for place, spec in enumerate(graph.output_specs()) if place not in copied)
        model = self.converted(graph, module)
        kept = [output.get_node().input_value(0) for place, output in enumerate(model.outputs) if place not in copied]
        model = openvino.Model(kept, model.get_parameters())  # it would share the memory of inputs that are results
        core = openvino.Core()

        def bound() -> BoundRequest:
            kind = SizedRequest if graph.dims else BoundRequest
            if shared:
                compiled = _compiled(core, model, options)
                return kind(lambda: compiled, len(graph.inputs), outputs, use.frugal)
            own = model.clone()  # keeps the current batch size
            return kind(partial(_compiled, core, own, options), len(graph.inputs), outputs, use.frugal)

        def sized(size: int) -> BoundRequest:
            model.reshape({position: [size, *spec.shape] for position, spec in enumerate(graph.inputs)})
            return bound()

        dynamic, fixed = bound(), () if graph.dims else use.sizes  # one size is not quicker where another is not fixed
        return OpenVinoStage({size: sized(size) for size in fixed}, dynamic, copied, first, axis)

    def properties(self) -> dict[str, object]:
        """Return the properties of a compiled model that say how it computes."""
        return {"INFERENCE_PRECISION_HINT": self.precision}

    def converted(self, graph: Graph, module: GraphModule) -> Foreign:
        """Return the graph, of which `module` was rebuilt, as a model of OpenVINO."""
        return _convert(graph, module)


class OpenVinoBf16(OpenVino):
    """OpenVINO on the CPU in bfloat16: about half a percent away from float32, so it needs a tolerance."""

    exact = False
    quick = False
    precision = "bf16"


class OpenVinoInt8(OpenVino):
    """OpenVINO on the CPU with linear layers in eight bits: one to three percent away from float32.

    Their weights have a scale for each output and `GROUP` numbers. What they multiply is rounded as it comes, as many:
    no rows are needed to find ranges, numbers of any size are rounded alike, and no row depends on another.
    Where no bytes are multiplied (without VNNI) the weights alone are in eight bits, and no build takes it: limited to
    AVX2, a text of 11 tokens took 0.73 of the time, and 16 of them 1.5 times as long.
    """

    exact = False
    quick = False

    def properties(self) -> dict[str, object]:
        """Return how many numbers are rounded together; limited to AVX2, OpenVINO answers with no rows at all."""
        return {**super().properties(), "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if multiplies_bytes() else 0}

    def gains_nothing(self, graph: Graph) -> str:
        """Say so where no bytes are multiplied, and of a graph without linear layers that read enough numbers."""
        if not multiplies_bytes():
            return "this processor does not multiply bytes (VNNI), and would take longer for batches"
        types = graph.whole.types()
        layers = (node.args[0] for node in graph.whole.nodes if node.op == LINEAR)
        widths = (types[read.name].shape[-1] for read in layers if isinstance(read, Value) and read.name in types)
        if any(isinstance(width, int) and width >= GROUP for width in widths):
            return ""
        return f"it has no linear layers that read {GROUP} numbers or more, which alone it computes in eight bits"

    def converted(self, graph: Graph, module: GraphModule) -> Foreign:
        """Return the graph as a model of OpenVINO with the weights of linear layers in eight bits."""
        return _in_eight_bits(super().converted(graph, module))


@dataclass(frozen=True, slots=True)
class OpenVinoStage:
    """A graph as several inference requests: one for each batch size that was compiled for, one for any other.

    A dynamic batch dimension costs about 3 microseconds for every operator of the graph, whatever its size: 8 % of
    ResNet-56 and half of a lookup at batch 1, a third of a decoder's step. The price of fixed sizes is a copy of the
    weights for each. `copied` says which outputs are unchanged inputs, or what `first` has made of these.

    A packed graph takes the places of words too (`packing`), of which the input `axis[0]` has as many a row as its
    dimension `axis[1]` says.
    """

    fixed: Mapping[int, "BoundRequest"]
    dynamic: "BoundRequest"
    copied: Mapping[int, int]
    first: Ahead | None
    axis: tuple[int, int] | None = None

    def twin(self) -> "OpenVinoStage":
        """Return the same stage for another thread, with inference requests of its own."""
        fixed = {size: request.twin() for size, request in self.fixed.items()}
        return replace(self, fixed=fixed, dynamic=self.dynamic.twin())

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the stage; the outputs are valid until the next call."""
        more: tuple[Tensor, ...] = ()
        if self.axis is not None:
            more = places_of_full(len(inputs[0]), inputs[self.axis[0]].shape[self.axis[1]])
        return self._run(inputs, more)

    def of_lengths(self, lengths: Sequence[int], *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the stage on rows that have these lengths and are filled up to the longest."""
        return self._run(inputs, () if self.axis is None else places(lengths))

    def _run(self, inputs: tuple[Tensor, ...], more: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if self.first is not None:
            inputs = self.first(*inputs)
        inputs = (*inputs, *more)
        found = self.fixed.get(inputs[0].shape[0], self.dynamic).run(inputs)
        if not self.copied:
            return tuple(found)
        found = list(found)
        for position, source in self.copied.items():
            found.insert(position, inputs[source].clone())
        return tuple(found)


class BoundRequest:
    """An inference request bound to torch's memory, so that nothing is copied.

    Outputs are in buffers of its own and valid until the next run. Binding new memory at each run, which comes cold
    from the allocator, costs more than everything else at a cut (ResNet-56 in 4 stages at batch 1: 13 % over the uncut
    model, 5 % with buffers kept).
    """

    def __init__(
        self, compile_: Callable[[], Foreign], inputs: int, outputs: tuple[TensorSpec, ...], frugal: bool
    ) -> None:
        self._compile = compile_
        self._compiled = compile_()
        self._request = self._compiled.create_infer_request()
        self._frugal = frugal
        self._outputs = outputs
        self._batch = 0  # the batch size bound now
        self._bound: list[Tensor | None] = [None] * inputs
        self._buffers: list[Tensor] = []
        self._found: list[Tensor] = []

    def twin(self) -> "BoundRequest":
        """Return another request, with buffers of its own."""
        return type(self)(self._compile, len(self._bound), self._outputs, self._frugal)

    def run(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Run the request; the outputs are views of the buffers."""
        batch = inputs[0].shape[0]
        for position, given in enumerate(inputs):
            tensor, bound = given.contiguous(), self._bound[position]
            if batch != self._batch or bound is None or bound.data_ptr() != tensor.data_ptr():
                self._bind(position, tensor)
        if batch != self._batch:
            self._bind_outputs(batch)
            self._batch = batch
        self._request.infer()
        if self._frugal and batch > 1:
            self._give_back()
        return self._found

    def _bind(self, position: int, tensor: Tensor) -> None:
        self._request.set_input_tensor(position, openvino.Tensor(tensor.numpy(), shared_memory=True))
        self._bound[position] = tensor  # OpenVINO does not keep it alive

    def _bind_outputs(self, batch: int) -> None:
        """Bind the first `batch` rows of the buffers; allocate larger buffers if necessary."""
        if not self._buffers or batch > self._buffers[0].shape[0]:
            self._buffers = [
                torch.empty(batch, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in self._outputs
            ]
        self._found = [buffer[:batch] for buffer in self._buffers]
        for position, tensor in enumerate(self._found):
            self._request.set_output_tensor(position, openvino.Tensor(tensor.numpy(), shared_memory=True))

    def _give_back(self) -> None:
        """Give back what the run took: a request would keep room for the largest batch that it ever ran.

        ResNet-56 in seven stages kept 49 MB behind a batch of 32, and 16 MB of these for outputs and inputs alone; one
        run after another, it takes no longer.
        """
        self._bound = [None] * len(self._bound)
        with suppress(RuntimeError):  # a twin runs at the moment, and gives back behind its own run
            self._compiled.release_memory()


class SizedRequest(BoundRequest):
    """The same for a graph with named dimensions: outputs are in OpenVINO's memory, which knows their sizes first."""

    def run(self, inputs: tuple[Tensor, ...]) -> list[Tensor]:
        """Run the request; the outputs are views of OpenVINO's memory."""
        for position, given in enumerate(inputs):
            tensor, bound = given.contiguous(), self._bound[position]
            if bound is None or bound.data_ptr() != tensor.data_ptr() or bound.shape != tensor.shape:
                self._bind(position, tensor)
        self._request.infer()
        found = [torch.from_numpy(self._request.get_output_tensor(at).data) for at in range(len(self._outputs))]
        if self._frugal and len(inputs[0]) > 1:
            found = [tensor.clone() for tensor in found]
            self._give_back()
        return found


def _options(threads: int, streams: int) -> dict[str, object]:
    """Return the properties of a compiled model of which `streams` requests may run at the same time.

    A single stream runs on the calling thread. With more, each call is handed to a thread of OpenVINO, which takes 50
    to 130 microseconds if a core is idle, whatever the properties, and far more if none is (`load.has_copies`). A
    small model, or one with `copies`, is compiled once for each twin instead.

    Threads stay unpinned. OpenVINO pins its own to the first cores, but not the calling thread, so both may wait for
    one core while another is idle. Two models that run at the same time would get the same cores.
    """
    return {
        "INFERENCE_NUM_THREADS": threads * streams,
        "NUM_STREAMS": streams,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }


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


def multiplies_bytes() -> bool:
    """Tell whether this processor multiplies and adds bytes at once: VNNI, of 512 bits or of 256."""
    found = torch.cpu.get_capabilities()
    return bool(found.get("avx512_vnni") or found.get("avx_vnni"))


def _in_eight_bits(model: Foreign) -> Foreign:
    """Change a model to have the weights of its linear layers in eight bits, and return it.

    A layer has a scale for each output and each `GROUP` numbers that it reads; one for each output where these do not
    come out even. Layers that read fewer numbers than `GROUP` stay: OpenVINO does not round these.
    """
    for node in model.get_ordered_ops():
        if node.get_type_name() != "MatMul":
            continue
        weight = node.input_value(1).get_node()
        if weight.get_type_name() != "Constant" or len(weight.shape) != 2:
            continue
        numbers, axis = weight.get_data(), 1 if node.get_attributes()["transpose_b"] else 0
        if numbers.dtype != np.float32 or numbers.shape[axis] < GROUP:
            continue
        sizes = _sizes_behind_norm(node.input_value(0))
        if sizes is not None and len(sizes) == numbers.shape[axis]:
            evens = np.sqrt(_none_tiny(sizes) / _none_tiny(np.abs(numbers).max(1 - axis)))
            evens /= np.median(evens)
            node.input(0).replace_source_output(ops.multiply(node.input_value(0), ops.constant(1 / evens)).output(0))
            numbers = numbers * (evens if axis else evens[:, None])
        shape = numbers.shape
        if axis and not shape[1] % GROUP:
            numbers, axis = numbers.reshape(len(numbers), -1, GROUP), 2
        scales = np.maximum(np.abs(numbers).max(axis, keepdims=True) / LARGEST, TINIEST)
        small = ops.constant(np.rint(numbers / scales).astype(np.int8))
        wide = ops.multiply(ops.convert(small, "f32"), ops.constant(scales))
        if axis == 2:
            wide = ops.reshape(wide, ops.constant(np.array(shape)), special_zero=False)
        node.input(1).replace_source_output(wide.output(0))
    return model


def _sizes_behind_norm(value: Foreign) -> Array | None:
    """Return about how large each number of a layer norm's output becomes, `(D,) float32`; None for any other value.

    A few of them are far larger than all others in most Transformers, and what is rounded together with one is rounded
    coarsely. So each is divided by a root that its weights are multiplied by (SmoothQuant, Xiao et al. 2023, equation 4
    with one half): both lose alike. Sizes follow from the norm, so that no rows are needed to find them.
    """
    moved = value.get_node()
    while moved.get_type_name() in {"Reshape", "Gather"}:
        moved = moved.input_value(0).get_node()
    scaled, shift = _and_constant(moved, "Add")
    norm, scale = _and_constant(scaled, "Multiply")
    if norm is None or norm.get_type_name() != "MVN":
        return None
    found: Array = np.abs(shift) + USUAL * np.abs(scale)
    return found


def _none_tiny(sizes: Array) -> Array:
    """Return sizes that may be divided by, none of them far below the others."""
    found: Array = np.maximum(sizes, max(sizes.max() * 1e-4, TINIEST))
    return found


def _and_constant(node: Foreign, kind: str) -> tuple[Foreign, Array]:
    """Return what a node of this kind reads beside a flat constant, and that; None for any other node."""
    for place, number in enumerate(node.input_values() if node is not None and node.get_type_name() == kind else ()):
        one = number.get_node()
        if one.get_type_name() == "Convert":  # to the type that it has
            one = one.input_value(0).get_node()
        if one.get_type_name() == "Constant" and one.get_data().dtype == np.float32:
            return node.input_value(1 - place).get_node(), one.get_data().reshape(-1)
    return None, np.empty(0)


def _with_masked_rows(graph: Graph) -> Graph:
    """Return the graph with 0 for what attends to nothing, as torch has it: OpenVINO has NaN there.

    Whether there is such a row follows from the mask, which is the same for all blocks, so torch finds it out first. A
    mask that is added to scores hides by minus infinity, as that of nn.TransformerEncoder does, or hides nothing whole.
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
    """Return whether a mask may hide all there is from a row: it says which places are seen, or adds -inf to some."""
    while kind.dtype != "bool":
        node = nodes.get(mask)
        if node is None or node.op.startswith("aten.masked_fill."):
            return node is not None and node.args[2] == -inf
        if operation(node) not in MOVED or not isinstance(node.args[0], Value):
            return False
        mask = node.args[0].name
    return True


def _matmul(node: Foreign) -> list[Foreign]:
    """Convert the matrix product, which the frontend only converts in parts.

    Among the parts is one that broadcasts both sides over the batch. It has no effect, but with a dynamic batch
    OpenVINO cannot know that, and copies all that a step of a Transformer has written and read.
    """
    return [ops.matmul(node.get_input(0), node.get_input(1), False, False).output(0)]


def reshaped(*arguments: object) -> Foreign:
    """Stand for a view: its arguments are what is viewed, and its sizes, 0 for one that stays as it is."""
    raise TypeError("this stands for a view in a graph that is converted and never run")


def _with_known_shapes(graph: Graph, module: GraphModule) -> GraphModule:
    """Change the views of `module`, which is rebuilt from `graph`, to have the sizes that do not vary; return it.

    Their sizes follow from those of inputs otherwise, so that OpenVINO knows none of them before it runs. With rows of
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
    """Convert a view whose sizes are known, but for those that stay and one that follows from the others."""
    sizes = [node.get_values_from_const_input(at) for at in range(1, node.get_input_size())]
    return [ops.reshape(node.get_input(0), ops.constant(np.array(sizes, np.int64)), special_zero=True).output(0)]


# OpenVINO converts neither LSTM nor GRU layers from exported graphs: here each layer is one operator for all steps. A
# conversion written in Python returns one result, while torch's operators return a tuple. So each result of a recurrent
# operator becomes a node of its own in the graph, and the results of one operator share what was made for the first.


def lstm_result(*arguments: object) -> Foreign:
    """Stand for one result of an LSTM: its arguments are the LSTM's number, the result's place, the LSTM's own."""
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
    """Return the conversions of the results in one module, by operator."""
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
    hidden)`. A GRU keeps the state's bias of the new gate apart, because it is multiplied by the reset gate.
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
