"""What a backend is, which ones there are, and how to compile with one.

A backend turns a graph and its weights into a fast call. A new one is a file with a class derived from `Backend`, and a
line in `BACKENDS`. It may refuse a graph (`ExportError`), and need not be correct for all of them: a build compares it
with the module on everything that clients may send (`verify`), and takes the next one if it differs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from latebind.domain.errors import ConfigError
from latebind.domain.model import TensorSpec
from latebind.program.arrays import OverArrays, array_of, filled, over_arrays, pass_through
from latebind.program.device import HOST, kind_of
from latebind.program.graph import Graph
from latebind.program.numeric import LookUp, lacking

if TYPE_CHECKING:
    from torch import Tensor

# `stage(*inputs) -> outputs`: the first stage takes all inputs of the model, the last returns all its outputs, and one
# activation passes between stages. Any batch size. Outputs are valid until the next call of the same stage, which may
# overwrite them: copy what is needed longer. For one thread at a time: each thread has a `twin`. A method
# `over_arrays(inputs)`, if there is one, returns the stage over numpy arrays (`arrays.over_arrays`).
StageFunction = Callable[..., tuple["Tensor", ...]]


LOOKUP = "aten.embedding.default"

Later = Callable[[Callable[[], None]], None]  # calls its argument, now or later, perhaps on another thread


def immediately(work: Callable[[], None]) -> None:
    """Call `work` now."""
    work()


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a stage will be used.

    It runs on `threads` threads, mostly with the given batch `sizes`, on `device`, where its inputs, outputs and
    weights are. `streams` of its twins may run at the same time; if more are called, they may wait for each other.
    Twins share weights unless `copies` is set. If `frugal`, the memory of a batch, except its outputs, is freed as soon
    as it has run, so that only running batches have such memory. If it `packs`, rows of different lengths run without
    their padding, as far as they can (`packing`). Work that only makes batches faster is passed to `later`.
    """

    threads: int
    sizes: tuple[int, ...] = (1,)
    device: str = HOST
    streams: int = 1
    copies: bool = False
    frugal: bool = False
    packs: bool = False
    later: Later = immediately


class Backend:
    """Compiles graphs. Its attributes describe it."""

    exact = True  # computes in the model's own precision; others are only tried if a tolerance is given
    fixed = False  # batch sizes that were compiled for are faster than others
    compiles = False  # making a stage takes time and memory
    copies_weights = False  # weights are not read again once a stage is made
    quick = True  # compiles a graph of a thousand operators in seconds, as encoders of sequence models may have
    packs = False  # runs rows of different lengths without their padding
    has_files = False  # builds write its stages to files, which are read without torch

    def unavailable(self, device: str = HOST) -> str | None:
        """Return why this backend cannot be used on this machine and kind of device, and what to do; or None."""
        del device
        return None

    def gains_nothing(self, graph: Graph) -> str:
        """Return why this backend has no advantage over others for a graph, or ""."""
        del graph
        return ""

    def compile(self, graph: Graph, weights: Mapping[str, "Tensor"], use: CompileOptions) -> StageFunction:
        """Return a call for the graph, whose weights are on the device already. Raises `ExportError`.

        A stage that keeps state between calls has a method `twin()`, which returns one for another thread over the
        same weights.
        """
        raise NotImplementedError


class _Registered(Mapping[str, Backend]):
    """Backends by name. Each is imported on first use, as `module:class`."""

    def __init__(self, places: dict[str, str]) -> None:
        self.places = places
        self._made = cache(lambda place: resolve_name(place)())

    def __getitem__(self, name: str) -> Backend:
        made: Backend = self._made(self.places[name])
        return made

    def __contains__(self, name: object) -> bool:
        return name in self.places

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __len__(self) -> int:
        return len(self.places)


BACKENDS = _Registered(
    {
        "eager": "latebind.program.eager:Eager",
        "compile": "latebind.program.inductor:Inductor",
        "openvino": "latebind.program.openvino:OpenVino",
        "openvino-bf16": "latebind.program.openvino:OpenVinoBf16",
        "openvino-int8": "latebind.program.openvino:OpenVinoInt8",
    }
)


def exact_backends(device: str = HOST) -> tuple[str, ...]:
    """Return the backends that compute in a model's own precision and are available on this kind of device."""
    return tuple(name for name, each in BACKENDS.items() if each.exact and each.unavailable(device) is None)


def exact_beside(name: str) -> str | None:
    """Return the fastest backend here that computes in a model's own precision; None if the one named does."""
    return None if BACKENDS[name].exact else exact_backends()[-1]


def backend_named(name: str, *, device: str = HOST) -> Backend:
    """Return the backend of this name; `device` is the kind of device, cpu or cuda.

    Raises `ConfigError` if there is no such backend or it cannot be used here.
    """
    if name not in BACKENDS:
        raise ConfigError(f"there is no backend {name!r}: choose from {', '.join(BACKENDS)}")
    reason = BACKENDS[name].unavailable(device)
    if reason is not None:
        raise ConfigError(f"the backend {name!r} cannot be used: {reason}")
    return BACKENDS[name]


class Use(TypedDict, total=False):
    """The options of `CompileOptions` other than the threads."""

    sizes: tuple[int, ...]
    device: str
    streams: int
    copies: bool
    frugal: bool
    packs: bool
    later: Later


def compile_graph(
    graph: Graph, weights: Mapping[str, "Tensor"], *, backend: str, threads: int, **use: Unpack[Use]
) -> StageFunction:
    """Compile a graph (a whole model or a stage) with the backend of `backend_of`; an empty stage returns its input.

    Weights that are not on the device are copied there.
    """
    return compile_for(CompileOptions(threads, **use), graph, weights, backend=backend)


def compile_for(use: CompileOptions, graph: Graph, weights: Mapping[str, "Tensor"], *, backend: str) -> StageFunction:
    """Compile a graph as `compile_graph` does, with these options."""
    named, backend = backend, backend_of(graph, weights, backend)
    if graph.buckets:
        # a backend may copy the weights for each size, and each bucket has a copy already
        use = replace(use, sizes=(), packs=False)
        return by_bucket(graph, lambda bucket: compile_for(use, bucket, weights, backend=backend))
    if not graph.nodes:
        return pass_through
    if backend != named and not lacking(graph):
        return OverArrays(LookUp(graph, {name: array_of(weights[name]) for name in graph.weights()}))
    there = on_device(weights, use.device)
    return backend_named(backend, device=kind_of(use.device)).compile(graph, there, use)


def backend_of(graph: Graph, weights: Mapping[str, Any], backend: str) -> str:
    """Return the backend for a graph of a model on `backend`: eager, not OpenVINO, if it only looks words up.

    Looking words up in tables, without any multiplication, takes torch 0.15 ms for a text, and numpy less if it can
    (`numeric`). OpenVINO takes 0.33, half of it to check and bind inputs whose lengths keep changing.
    """
    looks_up = [node.op == LOOKUP for node in graph.nodes]
    others = (name for node in graph.nodes if node.op != LOOKUP for name in node.weights())
    multiplies = any("float" in str(weights[name].dtype) and weights[name].ndim > 1 for name in others)
    return "eager" if backend.startswith("openvino") and any(looks_up) and not multiplies else backend


class Bucketed:
    """A graph with `buckets`, each computed by one of `calls`: a row is padded to the first bucket that it fits."""

    def __init__(self, graph: Graph, calls: Sequence[Callable[..., tuple[Any, ...]]]) -> None:
        self._graph, self._calls = graph, calls
        self._buckets, self._outputs, self._axes = graph.bucket_sizes(), graph.output_specs(), graph.axes

    def twin(self) -> "Bucketed":
        """Return the same for another thread."""
        return Bucketed(self._graph, tuple(map(twin, self._calls)))

    def over_arrays(self, inputs: Sequence[TensorSpec]) -> "Bucketed":
        """Return the same over arrays."""
        return Bucketed(self._graph, [over_arrays(call, inputs) for call in self._calls])

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run rows of one size; outputs are cut to that size."""
        sizes = {name: inputs[place].shape[axis] for name, (place, axis) in self._axes.items()}
        for bucket, call in zip(self._buckets, self._calls, strict=True):
            if bucket == sizes:
                return call(*inputs)
            if all(bucket[name] >= size for name, size in sizes.items()):
                whole = [
                    fitted(tensor, spec.shape_of(bucket), spec.padding or 0)
                    for tensor, spec in zip(inputs, self._graph.inputs, strict=True)
                ]
                return tuple(
                    tensor[(slice(None), *map(slice, spec.shape_of(sizes)))]
                    for tensor, spec in zip(call(*whole), self._outputs, strict=True)
                )
        raise ValueError(f"rows of {sizes} are larger than any that the graph takes")


def fitted(rows: Any, shape: Sequence[int], number: float = 0) -> Any:
    """Return rows `(B, ...)` of an array or tensor as `(B, *shape)`: cut off, or padded with a number."""
    if rows.shape[1:] == tuple(shape):
        return rows
    whole = filled(rows, (len(rows), *shape), number)
    both = (slice(None), *(slice(min(size, own)) for size, own in zip(shape, rows.shape[1:], strict=True)))
    whole[both] = rows[both]
    return whole


def by_bucket(graph: Graph, make: Callable[[Graph], StageFunction]) -> StageFunction:
    """Return what `make` makes of a graph, or, if it has buckets, of each of them."""
    return Bucketed(graph, tuple(map(make, graph.buckets))) if graph.buckets else make(graph)


def compile_stages(
    graphs: tuple[Graph, ...], weights: Mapping[str, "Tensor"], *, backend: str, threads: int, **use: Unpack[Use]
) -> tuple[StageFunction, ...]:
    """Compile each graph of a chain; a weight that several stages read is on the device only once."""
    there = on_device(weights, use.get("device", HOST))
    return tuple(compile_graph(graph, there, backend=backend, threads=threads, **use) for graph in graphs)


def on_device(weights: Mapping[str, "Tensor"], device: str) -> Mapping[str, "Tensor"]:
    """Return the weights on a device; those that are there already are not copied."""
    return {name: tensor.to(device) for name, tensor in weights.items()}


def twin(stage: StageFunction) -> StageFunction:
    """Return the stage for another thread, which may run at the same time: the same weights, separate outputs.

    A stage without a method `twin` keeps nothing between calls, and is shared by all threads.
    """
    other: Callable[[], StageFunction] | None = getattr(stage, "twin", None)
    return stage if other is None else other()


def run_rows(stage: StageFunction, lengths: Sequence[int], inputs: tuple["Tensor", ...]) -> tuple["Tensor", ...]:
    """Return the outputs of a stage for rows of these lengths, padded to the longest; some stages skip the padding."""
    of_lengths: StageFunction | None = getattr(stage, "of_lengths", None)
    return stage(*inputs) if of_lengths is None else of_lengths(lengths, *inputs)


def run_chain(
    stages: Sequence[StageFunction], inputs: tuple["Tensor", ...], lengths: Sequence[int] = ()
) -> tuple["Tensor", ...]:
    """Return the outputs of the last stage; `lengths` are those of the rows, if they differ."""
    for stage in stages:
        inputs = run_rows(stage, lengths, inputs) if lengths else stage(*inputs)
    return inputs
