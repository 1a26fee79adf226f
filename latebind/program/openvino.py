"""The OpenVINO backends: a compiled OpenVINO model, called with as little Python as possible.

A stage computes on arrays. Only the conversion of a graph needs torch (`conversion`).
"""

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from latebind.domain.model import TensorSpec
from latebind.program.arrays import Array, Arrays, OverArrays
from latebind.program.backends import Backend, CompileOptions, Later, StageFunction, immediately
from latebind.program.device import HOST, processor_flags
from latebind.program.graph import Graph, Value
from latebind.program.numeric import Ahead, Within
from latebind.program.packing import LINEAR, places, places_of_full

if TYPE_CHECKING:
    from torch import Tensor

try:  # an optional dependency
    import openvino
    from openvino import opset13 as ops
except ImportError:
    openvino = None
else:
    # OpenVINO makes its table of dtypes when the first one is asked for, and lets go of Python's lock meanwhile: of two
    # threads that ask at the same time, each would wait for what the other holds, for ever. Imports run on one thread.
    openvino.Type.f32.to_dtype()

Foreign = Any  # an object of OpenVINO, which comes without types

SHARED_FROM = 1 << 20  # bytes of weights from which twins that run at the same time may share them: `_options`
GROUP = 64  # numbers that are rounded together; with 32, MiniLM takes 1.06 to 1.2 times as long, with 128 0.91 to 0.97
LARGEST, TINIEST = 127, np.float32(1e-30)  # of a weight in eight bits, and of a scale
USUAL = 3  # deviations from the mean that numbers after a layer norm seldom exceed


@dataclass(frozen=True, slots=True)
class Converted:
    """A graph as an OpenVINO model, and what is done outside it.

    `inputs` are those of the model; if `sized`, their rows differ in size. `first` computes them from the graph's
    inputs (None: they are the same), and indices are `checked`, with the graph's `axes` (`Ahead`). `outputs` are the
    model's, and `copied` says which outputs of the graph are inputs of the model, unchanged; if all are, there is no
    `model`. A packed model also takes the places of words (`packing`): a row has as many as the dimension `axis[1]` of
    input `axis[0]`.
    """

    model: Foreign
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    copied: Mapping[int, int]
    first: Graph | None
    checked: tuple[tuple[int, Within], ...]
    axes: Mapping[str, tuple[int, int]]
    axis: tuple[int, int] | None
    sized: bool
    weight_bytes: int


class OpenVino(Backend):
    """OpenVINO on the CPU, computing in float32."""

    fixed = True
    compiles = True
    copies_weights = True
    packs = True
    has_files = True
    precision = "f32"

    def unavailable(self, device: str = HOST) -> str | None:
        """Check for OpenVINO, which is an optional dependency and only used on CPUs."""
        if device != HOST:
            return f"OpenVINO computes on the CPU, not on {device}: use --backend eager or compile, or --device cpu"
        return None if openvino is not None else "OpenVINO is not installed: pip install 'latebind[openvino]'"

    def compile(self, graph: Graph, weights: Mapping[str, "Tensor"], use: CompileOptions) -> StageFunction:
        """Convert the graph in memory and compile it, for batches of these sizes and for any other.

        What follows from whole numbers alone is computed first. Raises `ExportError` if OpenVINO cannot convert an
        operator of the graph, or is not certain to compute with whole numbers as torch does.
        """
        from latebind.program.conversion import converted  # noqa: PLC0415  (with torch)
        from latebind.program.whole_numbers import ahead_of  # noqa: PLC0415

        made = converted(graph, weights, packs=use.packs)
        return OverArrays(self.stage(made, ahead_of(made.first, made.checked, made.axes, weights), use))

    def stage(self, made: Converted, ahead: Ahead | None, use: CompileOptions) -> "OpenVinoStage":
        """Return a stage that is compiled for batches of these sizes and, perhaps later, for any other."""
        if made.model is None:
            return OpenVinoStage({}, None, made.copied, ahead, made.axis)
        shared = use.streams == 1 or (made.weight_bytes >= SHARED_FROM and not use.copies)
        options = {**_options(use.threads, use.streams if shared else 1), **self.properties()}
        model, core = self.changed(made.model), openvino.Core()
        kind = SizedRequest if made.sized else BoundRequest

        def request(compile_: Callable[[], Foreign], later: Later) -> BoundRequest:
            return kind(_Once(compile_) if shared else compile_, len(made.inputs), made.outputs, use.frugal, later)

        sizes = () if made.sized else use.sizes  # fixing one size gains nothing if another varies
        fixed = {
            size: request(partial(_compiled_for, size, made.inputs, core, model, options), immediately)
            for size in sizes
        }
        dynamic = request(partial(_compiled, core, model, options), use.later if 1 in fixed else immediately)
        return OpenVinoStage(fixed, dynamic, made.copied, ahead, made.axis)

    def properties(self) -> dict[str, object]:
        """Return the properties with which a model is compiled that say how it computes."""
        return {"INFERENCE_PRECISION_HINT": self.precision}

    def changed(self, model: Foreign) -> Foreign:
        """Return the model that this backend compiles; it may be changed in place."""
        return model


class OpenVinoBf16(OpenVino):
    """OpenVINO on the CPU in bfloat16: about half a percent away from float32, so it needs a tolerance."""

    exact = False
    quick = False
    precision = "bf16"


class OpenVinoInt8(OpenVino):
    """OpenVINO on the CPU with linear layers in eight bits: one to three percent away from float32.

    Their weights have a scale for each output and `GROUP` numbers. Activations are quantized at run time in groups of
    the same size: no rows are needed to find ranges, numbers of any size are rounded alike, and no row depends on
    another. A processor that does not multiply bytes (without VNNI) has only the weights in eight bits, and no build
    takes it: limited to AVX2, a text of 11 tokens took 0.73 of the time, and 16 of them 1.5 times as long.
    """

    exact = False
    quick = False

    def properties(self) -> dict[str, object]:
        """Return how many numbers are rounded together: 0 without VNNI, where OpenVINO would return no rows."""
        return {**super().properties(), "DYNAMIC_QUANTIZATION_GROUP_SIZE": GROUP if multiplies_bytes() else 0}

    def gains_nothing(self, graph: Graph) -> str:
        """Return a reason if no bytes are multiplied, or if no linear layer of the graph reads enough numbers."""
        if not multiplies_bytes():
            return "this processor does not multiply bytes (VNNI), and would take longer for batches"
        types = graph.whole.types()
        layers = (node.args[0] for node in graph.whole.nodes if node.op == LINEAR)
        widths = (types[read.name].shape[-1] for read in layers if isinstance(read, Value) and read.name in types)
        if any(isinstance(width, int) and width >= GROUP for width in widths):
            return ""
        return f"it has no linear layers that read {GROUP} numbers or more, and computes no others in eight bits"

    def changed(self, model: Foreign) -> Foreign:
        """Return the model with the weights of linear layers in eight bits."""
        return _in_eight_bits(model)


@dataclass(frozen=True, slots=True)
class OpenVinoStage:
    """A graph as several inference requests: one for each batch size that was compiled for, one for any other.

    A dynamic batch dimension costs about 3 microseconds for every operator of the graph, whatever its size: 8 % of
    ResNet-56 and half of a lookup at batch 1, a third of a decoder's step. Each fixed size takes a copy of the
    weights. Until the dynamic request is compiled, rows run one by one.

    For `copied` and `axis` see `Converted`; `dynamic` is None if all outputs are copied.
    """

    fixed: Mapping[int, "BoundRequest"]
    dynamic: "BoundRequest | None"
    copied: Mapping[int, int]
    first: Ahead | None
    axis: tuple[int, int] | None = None

    def twin(self) -> "OpenVinoStage":
        """Return the same stage for another thread, with inference requests of its own."""
        fixed = {size: request.twin() for size, request in self.fixed.items()}
        return replace(self, fixed=fixed, dynamic=None if self.dynamic is None else self.dynamic.twin())

    def __call__(self, *inputs: Array) -> Arrays:
        """Run the stage; the outputs are valid until the next call."""
        more: Arrays = ()
        if self.axis is not None:
            more = places_of_full(len(inputs[0]), inputs[self.axis[0]].shape[self.axis[1]])
        return self._run(inputs, more)

    def of_lengths(self, lengths: Sequence[int], *inputs: Array) -> Arrays:
        """Run the stage on rows of these lengths, padded to the longest."""
        return self._run(inputs, () if self.axis is None else places(lengths))

    def _run(self, inputs: Arrays, more: Arrays) -> Arrays:
        if self.first is not None:
            inputs = self.first(*inputs)
        if more:
            inputs = (*inputs, *more)
        if self.dynamic is None:
            return tuple([inputs[source].copy() for source in self.copied.values()])
        request = self.fixed.get(len(inputs[0]), self.dynamic)
        found = request.run(inputs) if request.ready else self._by_row(inputs)
        if not self.copied:
            return tuple(found)
        found = list(found)
        for position, source in self.copied.items():
            found.insert(position, inputs[source].copy())
        return tuple(found)

    def _by_row(self, inputs: Arrays) -> list[Array]:
        found = list[list[Array]]()
        for at in range(len(inputs[0])):
            one = tuple([rows[at : at + 1] for rows in inputs])
            found.append([rows.copy() for rows in self.fixed[1].run(one)])
        return [np.concatenate(rows) for rows in zip(*found, strict=True)]


class _Once:
    """Calls `call` once and keeps the result, but not `call`, which holds a model with its weights."""

    def __init__(self, call: Callable[[], Foreign]) -> None:
        self._call: Callable[[], Foreign] | None = call
        self._result: Foreign = None

    def __call__(self) -> Foreign:
        if self._call is not None:
            self._result, self._call = self._call(), None
        return self._result


class BoundRequest:
    """An inference request bound to the memory of arrays, so that nothing is copied.

    Outputs are in its own buffers and valid until the next run. Binding new memory at each run, which is cold from the
    allocator, costs more than everything else at a cut (ResNet-56 in 4 stages at batch 1: 13 % over the uncut model,
    5 % with buffers kept).
    """

    def __init__(
        self, compile_: Callable[[], Foreign], inputs: int, outputs: tuple[TensorSpec, ...], frugal: bool, later: Later
    ) -> None:
        self._compile = compile_
        self._later = later
        self._compiled: Foreign = None
        self._request: Foreign = None
        self._frugal = frugal
        self._outputs = outputs
        self._batch = 0  # the batch size bound now
        self._bound: list[Array | None] = [None] * inputs
        self._places = [0] * inputs  # of their memory
        self._buffers: list[Array] = []
        self._found: list[Array] = []
        later(self._prepare)

    @property
    def ready(self) -> bool:
        """Whether it is compiled."""
        return self._request is not None

    def twin(self) -> "BoundRequest":
        """Return another request, with its own buffers; it is compiled later if this one still waits for that."""
        later = immediately if self.ready else self._later
        return type(self)(self._compile, len(self._bound), self._outputs, self._frugal, later)

    def _prepare(self) -> None:
        self._compiled = self._compile()
        self._request = self._compiled.create_infer_request()

    def run(self, inputs: Arrays) -> list[Array]:
        """Run the request; the outputs are views of the buffers."""
        batch = len(inputs[0])
        for position, given in enumerate(inputs):
            if given is not self._bound[position]:  # buffers of the stage before usually are
                self._bind(position, given)
        if batch != self._batch:
            self._bind_outputs(batch)
            self._batch = batch
        self._request.infer()
        if self._frugal and batch > 1:
            self._give_back()
        return self._found

    def _bind(self, position: int, given: Array) -> None:
        """Bind an input to an array, unless one of the same shape in the same memory is bound."""
        rows, bound = given if given.flags.carray else np.array(given, order="C"), self._bound[position]
        place: int = rows.__array_interface__["data"][0]
        if bound is None or place != self._places[position] or bound.shape != rows.shape:
            self._request.set_input_tensor(position, openvino.Tensor(rows, shared_memory=True))
            self._places[position] = place
        self._bound[position] = rows  # OpenVINO does not keep it alive

    def _bind_outputs(self, batch: int) -> None:
        """Bind the first `batch` rows of the buffers; allocate larger buffers if necessary."""
        if not self._buffers or batch > len(self._buffers[0]):
            self._buffers = [np.empty((batch, *spec.shape), spec.dtype) for spec in self._outputs]
        self._found = [buffer[:batch] for buffer in self._buffers]
        for position, rows in enumerate(self._found):
            self._request.set_output_tensor(position, openvino.Tensor(rows, shared_memory=True))

    def _give_back(self) -> None:
        """Free the memory of a run: a request would keep that of the largest batch it ever ran.

        ResNet-56 in seven stages kept 49 MB after a batch of 32, 16 MB of these for outputs and inputs alone. Freeing
        it costs no time when runs follow each other.
        """
        self._bound = [None] * len(self._bound)
        with suppress(RuntimeError):  # a twin is running, and frees the memory after its own run
            self._compiled.release_memory()


class SizedRequest(BoundRequest):
    """The same for a graph with named dimensions: outputs are in OpenVINO's memory, which determines their sizes."""

    def run(self, inputs: Arrays) -> list[Array]:
        """Run the request; the outputs are views of OpenVINO's memory."""
        for position, given in enumerate(inputs):
            if given is not self._bound[position]:
                self._bind(position, given)
        self._request.infer()
        found = [self._request.get_output_tensor(at).data for at in range(len(self._outputs))]
        if self._frugal and len(inputs[0]) > 1:
            found = [rows.copy() for rows in found]
            self._give_back()
        return found


def _options(threads: int, streams: int) -> dict[str, object]:
    """Return the properties of a compiled model of which `streams` requests may run at the same time.

    A single stream runs on the calling thread. With more, each call is handed to an OpenVINO thread, which takes 50 to
    130 microseconds if a core is idle, whatever the properties, and far more if none is (`load.has_copies`). A small
    model, or one with `copies`, is compiled once for each twin instead.

    Threads stay unpinned. OpenVINO would pin its own to the first cores, but not the calling thread, so both might
    wait for one core while another is idle, and two models that run at the same time would get the same cores.
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
    """Return a model compiled for the CPU, and restore this thread's signal stack.

    A `Core` replaces that of the thread that first compiles with it (OpenVINO's pull request 11894), and restores the
    previous one when it is destroyed. If cores are destroyed in the order of their creation, the thread is left with a
    stack that is gone, and its next signal ends the process. One core for all models would be simpler, but with it a
    process of many models ended with a segmentation fault within OpenVINO.
    """
    if sys.platform != "linux":
        return core.compile_model(model, "CPU", options)
    own, system = _SignalStack(), ctypes.CDLL(None)
    system.sigaltstack(None, ctypes.byref(own))
    try:
        return core.compile_model(model, "CPU", options)
    finally:
        system.sigaltstack(ctypes.byref(own), None)


def _compiled_for(
    size: int, inputs: Sequence[TensorSpec], core: Foreign, model: Foreign, options: Mapping[str, object]
) -> Foreign:
    """Return a model compiled for batches of this size."""
    own = model.clone()
    own.reshape({position: [size, *spec.shape] for position, spec in enumerate(inputs)})
    return _compiled(core, own, options)


def multiplies_bytes() -> bool:
    """Return whether this processor multiplies and adds bytes in one instruction: VNNI, of 512 bits or of 256."""
    return not processor_flags().isdisjoint({"avx512_vnni", "avx_vnni"})


def _in_eight_bits(model: Foreign) -> Foreign:
    """Store the weights of a model's linear layers in eight bits, in place, and return the model.

    A layer has a scale for each output and each `GROUP` numbers that it reads, or one for each output if `GROUP` does
    not divide these. Layers that read fewer numbers than `GROUP` stay: OpenVINO does not round these.
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
        floats = ops.multiply(ops.convert(small, "f32"), ops.constant(scales))
        if axis == 2:
            floats = ops.reshape(floats, ops.constant(np.array(shape)), special_zero=False)
        node.input(1).replace_source_output(floats.output(0))
    return model


def _sizes_behind_norm(value: Foreign) -> Array | None:
    """Return about how large each number of a layer norm's output becomes, `(D,) float32`; None for any other value.

    In most Transformers a few of them are far larger than all others, and numbers rounded together with one are rounded
    coarsely. So each is divided by a root that its weights are multiplied by (SmoothQuant, Xiao et al. 2023, equation 4
    with one half): both lose alike. Sizes follow from the norm, so no rows are needed to find them.
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
    """Return sizes that are safe divisors: none is far below the others."""
    found: Array = np.maximum(sizes, max(sizes.max() * 1e-4, TINIEST))
    return found


def _and_constant(node: Foreign, kind: str) -> tuple[Foreign, Array]:
    """Return the other operand of a node of this kind that reads a flat constant, and the constant; None for others."""
    for place, number in enumerate(node.input_values() if node is not None and node.get_type_name() == kind else ()):
        one = number.get_node()
        if one.get_type_name() == "Convert":  # to the type that it has
            one = one.input_value(0).get_node()
        if one.get_type_name() == "Constant" and one.get_data().dtype == np.float32:
            return node.input_value(1 - place).get_node(), one.get_data().reshape(-1)
    return None, np.empty(0)
