"""The backends: each turns a graph and its weights into one fast call. A new one is a class and a line in BACKENDS."""

import importlib.util
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from latebind.domain.errors import ConfigError
from latebind.program.device import HOST
from latebind.program.graph import Graph
from latebind.program.inductor_stage import compile_with_inductor
from latebind.program.openvino_stage import compile_with_openvino
from latebind.program.rebuild import apart, rebuild

# `stage(*inputs) -> outputs`: the first stage takes all inputs of the model, the last gives all its outputs, between
# them goes one activation. Any batch size. Outputs hold until the next call of the same stage, which may write over
# them; copy what is to last. Not for two threads at a time.
StageFunction = Callable[..., tuple[Tensor, ...]]


def hand_on(*inputs: Tensor) -> tuple[Tensor, ...]:
    """The empty stage: its outputs are the inputs themselves and hold as long as those."""
    return inputs


class Backend(Protocol):
    """Makes stages fast. `exact` backends compute in the model's precision, others need a tolerance to be allowed.

    Where `fixed`, a batch of a size that was compiled for is quicker than one of any other size.
    """

    exact: bool
    fixed: bool

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Return why this backend cannot be used on this machine and kind of device and what to do, or None."""

    def compile(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        *,
        threads: int,
        sizes: Sequence[int] = (1,),
        device: torch.device = HOST,
    ) -> StageFunction:
        """Return a callable for the graph that uses `threads` threads; batches of these sizes come most.

        The weights lie on `device`, where inputs will and outputs do; they are not copied there.
        """


class Eager:
    """Torch, operator by operator."""

    exact = True
    fixed = False

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Eager is always there."""
        del device
        return None

    def compile(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        *,
        threads: int,
        sizes: Sequence[int] = (1,),
        device: torch.device = HOST,
    ) -> StageFunction:
        """Rebuild the graph as a module; the number of threads is the process's."""
        del sizes
        torch.set_num_threads(threads)
        module = rebuild(graph, weights, device=device)

        def stage(*inputs: Tensor) -> tuple[Tensor, ...]:
            with torch.inference_mode():
                found: tuple[Tensor, ...] = module(*inputs)
            return apart(found, inputs)

        return stage


class Inductor:
    """`torch.compile` with frozen weights."""

    exact = True
    fixed = False

    def unavailable(self, device: str = HOST.type) -> str | None:
        """Inductor writes C++ and needs a compiler for it; for CUDA it writes Triton as well."""
        if device != HOST.type and importlib.util.find_spec("triton") is None:
            return "torch.compile needs Triton on CUDA: pip install triton, or use --backend eager"
        if any(shutil.which(compiler) for compiler in ("g++", "clang++")):
            return None
        return "torch.compile needs a C++ compiler: install g++ or clang++"

    def compile(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        *,
        threads: int,
        sizes: Sequence[int] = (1,),
        device: torch.device = HOST,
    ) -> StageFunction:
        """Compile for a batch of one and for larger ones; takes seconds a stage unless torch's own cache has it."""
        del sizes
        torch.set_num_threads(threads)
        return compile_with_inductor(graph, rebuild(graph, weights, device=device), device)


class OpenVino:
    """OpenVINO on the CPU, computing in float32."""

    exact = True
    fixed = True
    precision = "f32"

    def unavailable(self, device: str = HOST.type) -> str | None:
        """OpenVINO is an optional dependency, and for CPUs here."""
        if device != HOST.type:
            return f"OpenVINO computes on the CPU, not on {device}: use --backend eager or compile, or --device cpu"
        if importlib.util.find_spec("openvino") is not None:
            return None
        return "OpenVINO is not installed: pip install 'latebind[openvino]'"

    def compile(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        *,
        threads: int,
        sizes: Sequence[int] = (1,),
        device: torch.device = HOST,
    ) -> StageFunction:
        """Convert the graph in memory and compile it; weights are converted and copied."""
        del device
        module = rebuild(graph, weights)
        return compile_with_openvino(graph, module, threads=threads, precision=self.precision, sizes=sizes)


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
