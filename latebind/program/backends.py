"""The backends: each compiles a graph and its weights to a fast call. A new one is a class and a line in BACKENDS."""

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
from latebind.program.openvino import OpenVinoStage, compile_with_openvino
from latebind.program.operators import resolve
from latebind.program.ranges import find_limits
from latebind.program.rebuild import copy_input_views, rebuild
from latebind.program.whole_numbers import split_whole_numbers

# `stage(*inputs) -> outputs`: the first stage takes all inputs of the model, the last returns all its outputs, and one
# activation passes between stages. Any batch size. Outputs are valid until the next call of the same stage, which may
# overwrite them: copy what is needed longer. For one thread at a time: each thread has a `twin`.
StageFunction = Callable[..., tuple[Tensor, ...]]


def pass_through(*inputs: Tensor) -> tuple[Tensor, ...]:
    """The empty stage: its outputs are its inputs, not copied."""
    return inputs


class NotResident(LatebindError):
    """A stage was called that is not in memory."""


class EvictableStage:
    """A stage that can be loaded and evicted; its twins are filled and emptied with it.

    Calls that are under way when it is emptied run to their end.
    """

    def __init__(self) -> None:
        self._stage: StageFunction | None = None
        self._twins: list[EvictableStage] = []

    @property
    def filled(self) -> bool:
        """Whether the stage is in memory."""
        return self._stage is not None

    def twin(self) -> "EvictableStage":
        """Return the same stage for another thread."""
        made = EvictableStage()
        if self._stage is not None:
            made.fill(twin(self._stage))
        self._twins.append(made)
        return made

    def fill(self, stage: StageFunction) -> None:
        """Let `stage` answer calls from now on."""
        for place in self._twins:
            place.fill(twin(stage))
        self._stage = stage

    def empty(self) -> None:
        """Drop the stage."""
        for place in self._twins:
            place.empty()
        self._stage = None

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the stage; raises `NotResident` if it is not in memory."""
        stage = self._stage
        if stage is None:
            raise NotResident("a stage was called that is not in memory: report this with an event log")
        return stage(*inputs)


def twin(stage: StageFunction) -> StageFunction:
    """Return the stage for another thread, which may run at the same time: the same weights, separate outputs.

    Only OpenVINO stages and evictable stages keep state between calls; any other can be shared by all threads.
    """
    return stage.twin() if isinstance(stage, OpenVinoStage | EvictableStage) else stage


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """How a stage will be used.

    It runs on `threads` threads, mostly with the given batch `sizes`, on `device`, where its inputs, outputs and
    weights are. `streams` of its twins may run at the same time; if more are called, they may wait for each other.
    Twins share weights unless each is to have `copies`. If `frugal`, it gives back
    what a batch took as soon as that has run, but for the outputs: only as many batches then have such memory as run.
    """

    threads: int
    sizes: tuple[int, ...] = (1,)
    device: torch.device = HOST
    streams: int = 1
    copies: bool = False
    frugal: bool = False


class Backend(Protocol):
    """Compiles graphs. `exact` backends compute in the model's precision; others are only tried with a tolerance.

    If `fixed`, batch sizes that were compiled for are quicker than others. If it `compiles`, making a stage takes time
    and memory. If it `copies`, weights are not read again after that.
    """

    exact: bool
    fixed: bool
    compiles: bool
    copies: bool

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Return why this backend cannot be used on this machine and kind of device, and what to do; or None."""

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        """Return a callable for the graph. The weights are on the device already."""


class Eager:
    """Torch, operator by operator."""

    exact = True
    fixed = False
    compiles = False
    copies = False

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Return None: eager can always be used."""
        del device
        return None

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        """Rebuild the graph as a module; the number of threads is set for the whole process."""
        torch.set_num_threads(use.threads)
        run = rebuild(graph, weights, device=use.device).forward  # calling the module itself would look for hooks first

        def stage(*inputs: Tensor) -> tuple[Tensor, ...]:
            if torch.is_inference_mode_enabled():  # serving threads enter it once
                return copy_input_views(run(*inputs), inputs)
            with torch.inference_mode():
                return copy_input_views(run(*inputs), inputs)

        return stage


class Inductor:
    """`torch.compile` with frozen weights."""

    exact = True
    fixed = False
    compiles = True
    copies = False  # frozen weights may be used in place

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Check for a C++ compiler, and on CUDA for Triton, both of which Inductor needs."""
        if device != HOST.type and importlib.util.find_spec("triton") is None:
            return "torch.compile needs Triton on CUDA: pip install triton, or use --backend eager"
        if any(shutil.which(compiler) for compiler in ("g++", "clang++")):
            return None
        return "torch.compile needs a C++ compiler: install g++ or clang++"

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        """Compile for a batch of one and for larger ones; takes seconds per stage unless torch's own cache has it."""
        torch.set_num_threads(use.threads)
        inputs = find_limits(graph, weights).applied(graph.inputs)
        return compile_with_inductor(inputs, rebuild(graph, weights, device=use.device), use.device)


class OpenVino:
    """OpenVINO on the CPU, computing in float32."""

    exact = True
    fixed = True
    compiles = True
    copies = True
    precision = "f32"

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Check for OpenVINO, which is an optional dependency and only used on CPUs."""
        if device != HOST.type:
            return f"OpenVINO computes on the CPU, not on {device}: use --backend eager or compile, or --device cpu"
        if importlib.util.find_spec("openvino") is not None:
            return None
        return "OpenVINO is not installed: pip install 'latebind[openvino]'"

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        """Convert the graph in memory and compile it; weights are converted and copied."""
        whole, rest = split_whole_numbers(graph, weights)
        module = rebuild(rest, weights, operator=resolve)  # OpenVINO converts views but not reshapes
        return compile_with_openvino(
            rest,
            module,
            first=None if whole is None else rebuild(whole, weights).forward,
            threads=use.threads,
            precision=self.precision,
            sizes=use.sizes,
            streams=use.streams,
            copies=use.copies,
            frugal=use.frugal,
        )


class OpenVinoBf16(OpenVino):
    """OpenVINO on the CPU in bfloat16: about half a percent away from float32, so it needs a tolerance."""

    exact = False
    precision = "bf16"


BACKENDS: dict[str, Backend] = {
    "eager": Eager(),
    "compile": Inductor(),
    "openvino": OpenVino(),
    "openvino-bf16": OpenVinoBf16(),
}


def exact_backends(device: str = HOST.type) -> tuple[str, ...]:
    """Return the backends that compute in a model's own precision and are available on this kind of device."""
    return tuple(name for name, each in BACKENDS.items() if each.exact and each.unavailable(device) is None)


def backend_named(name: str, *, device: str = HOST.type) -> Backend:
    """Return the backend of this name; `device` is the kind of device, cpu or cuda.

    Raises `ConfigError` if there is no such backend or it cannot be used here.
    """
    if name not in BACKENDS:
        raise ConfigError(f"there is no backend {name!r}: choose from {', '.join(BACKENDS)}")
    reason = BACKENDS[name].unavailable(device)
    if reason is not None:
        raise ConfigError(f"the backend {name!r} cannot be used: {reason}")
    return BACKENDS[name]
