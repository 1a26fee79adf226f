"""The backends: each turns a graph and its weights into one fast call. A new one is a class and a line in BACKENDS."""

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError, LatebindError
from latebind.program.device import HOST
from latebind.program.graph import Graph
from latebind.program.inductor_stage import compile_with_inductor
from latebind.program.openvino_stage import OpenVinoStage, compile_with_openvino
from latebind.program.operators import resolve
from latebind.program.rebuild import apart, rebuild

# `stage(*inputs) -> outputs`: the first stage takes all inputs of the model, the last gives all its outputs, between
# them goes one activation. Any batch size. Outputs hold until the next call of the same stage, which may write over
# them; copy what is to last. Not for two threads at a time: each has a `twin`.
StageFunction = Callable[..., tuple[Tensor, ...]]


def hand_on(*inputs: Tensor) -> tuple[Tensor, ...]:
    """The empty stage: its outputs are the inputs themselves and hold as long as those."""
    return inputs


class Absent(LatebindError):
    """A stage was called that is not in memory."""


class Place:
    """Where one worker finds a stage that comes to memory and goes; twins are filled and emptied with it.

    Whoever has begun to call what lay here ends with it.
    """

    def __init__(self) -> None:
        self._stage: StageFunction | None = None
        self._twins: list[Place] = []

    @property
    def filled(self) -> bool:
        """Whether the stage is in memory."""
        return self._stage is not None

    def twin(self) -> "Place":
        """Return the place of the same stage for another thread."""
        made = Place()
        if self._stage is not None:
            made.fill(twin(self._stage))
        self._twins.append(made)
        return made

    def fill(self, stage: StageFunction) -> None:
        """Have calls answered by `stage`."""
        for place in self._twins:
            place.fill(twin(stage))
        self._stage = stage

    def empty(self) -> None:
        """Let go of the stage."""
        for place in self._twins:
            place.empty()
        self._stage = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run what lies here; raises `Absent` where nothing does."""
        stage = self._stage
        if stage is None:
            raise Absent("a stage was called that is not in memory: report this with an event log")
        return stage(*inputs)


def twin(stage: StageFunction) -> StageFunction:
    """Return the stage for another thread, which may run at the same time: the same weights, outputs of its own.

    Only stages of OpenVINO and places keep something between calls; any other is for all threads as it is.
    """
    return stage.twin() if isinstance(stage, OpenVinoStage | Place) else stage


@dataclass(frozen=True, slots=True)
class Use:
    """How a stage is to be used: on so many threads, with batches of these sizes most of all, and where.

    On `device` its inputs, outputs and weights lie. `streams` of its twins may run at the same time; where more are
    asked to, they may wait for each other. Twins share weights, unless
    they are to have `copies`. A `lone` one takes one row and no more.
    """

    threads: int
    sizes: tuple[int, ...] = (1,)
    device: torch.device = HOST
    streams: int = 1
    lone: bool = False
    copies: bool = False


class Backend(Protocol):
    """Makes stages fast. `exact` backends compute in the model's precision, others need a tolerance to be allowed.

    Where `fixed`, a batch of a size that was compiled for is quicker than one of any other size. One that `compiles`
    takes its time and memory; one that `copies` does not read the weights again once that is done. One that `divides`
    gives several threads a part each even of one row.
    """

    exact: bool
    fixed: bool
    compiles: bool
    copies: bool
    divides: bool

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Return why this backend cannot be used on this machine and kind of device and what to do, or None."""

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: Use) -> StageFunction:
        """Return a callable for the graph. The weights lie on the device already; they are not copied there."""


class Eager:
    """Torch, operator by operator."""

    exact = True
    fixed = False
    compiles = False
    copies = False
    divides = False  # ResNet-56 takes 1.2 times as long on two threads

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Eager is always there."""
        del device
        return None

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: Use) -> StageFunction:
        """Rebuild the graph as a module; the number of threads is the process's."""
        torch.set_num_threads(use.threads)
        run = rebuild(graph, weights, device=use.device).forward  # a call of the module looks for hooks first

        def stage(*inputs: Tensor) -> tuple[Tensor, ...]:
            if torch.is_inference_mode_enabled():  # once for a thread that serves
                return apart(run(*inputs), inputs)
            with torch.inference_mode():
                return apart(run(*inputs), inputs)

        return stage


class Inductor:
    """`torch.compile` with frozen weights."""

    exact = True
    fixed = False
    compiles = True
    copies = False  # frozen weights may stay where they lie
    divides = False

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Inductor writes C++ and needs a compiler for it; for CUDA it writes Triton as well."""
        if device != HOST.type and importlib.util.find_spec("triton") is None:
            return "torch.compile needs Triton on CUDA: pip install triton, or use --backend eager"
        if any(shutil.which(compiler) for compiler in ("g++", "clang++")):
            return None
        return "torch.compile needs a C++ compiler: install g++ or clang++"

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: Use) -> StageFunction:
        """Compile for a batch of one and for larger ones; takes seconds a stage unless torch's own cache has it."""
        torch.set_num_threads(use.threads)
        return compile_with_inductor(graph, rebuild(graph, weights, device=use.device), use.device)


class OpenVino:
    """OpenVINO on the CPU, computing in float32."""

    exact = True
    fixed = True
    compiles = True
    copies = True
    divides = True
    precision = "f32"

    def unavailable(self, device: str = HOST.type) -> str | None:
        """OpenVINO is an optional dependency, and for CPUs here."""
        if device != HOST.type:
            return f"OpenVINO computes on the CPU, not on {device}: use --backend eager or compile, or --device cpu"
        if importlib.util.find_spec("openvino") is not None:
            return None
        return "OpenVINO is not installed: pip install 'latebind[openvino]'"

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: Use) -> StageFunction:
        """Convert the graph in memory and compile it; weights are converted and copied."""
        module = rebuild(graph, weights, operator=resolve)  # which knows views and no reshapes
        return compile_with_openvino(
            graph,
            module,
            threads=use.threads,
            precision=self.precision,
            sizes=use.sizes,
            streams=use.streams,
            lone=use.lone,
            copies=use.copies,
        )


class OpenVinoBf16(OpenVino):
    """OpenVINO on the CPU, computing in bfloat16: about half a percent away from float32, so it needs a tolerance."""

    exact = False
    precision = "bf16"


BACKENDS: dict[str, Backend] = {
    "eager": Eager(),
    "compile": Inductor(),
    "openvino": OpenVino(),
    "openvino-bf16": OpenVinoBf16(),
}


def exact_backends(device: str = HOST.type) -> tuple[str, ...]:
    """Return the backends that compute in a model's own precision and can be used here on this kind of device."""
    return tuple(name for name, each in BACKENDS.items() if each.exact and each.unavailable(device) is None)


def backend_named(name: str, *, device: str = HOST.type) -> Backend:
    """Return the backend of this name; raises `ConfigError` if there is none or it cannot be used here.

    `device` is the kind of device: cpu or cuda.
    """
    if name not in BACKENDS:
        raise ConfigError(f"there is no backend {name!r}: choose from {', '.join(BACKENDS)}")
    reason = BACKENDS[name].unavailable(device)
    if reason is not None:
        raise ConfigError(f"the backend {name!r} cannot be used: {reason}")
    return BACKENDS[name]
