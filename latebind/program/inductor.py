"""The `compile` backend: torch.compile with frozen weights, once for batch 1 and once for larger batches."""

import importlib.util
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import islice, product
from threading import Lock
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from latebind.domain.errors import ExportError
from latebind.program.backends import Backend, CompileOptions, StageFunction
from latebind.program.device import HOST
from latebind.program.eager import copy_input_views, rebuild
from latebind.program.graph import Graph
from latebind.program.lengths import at_size, tried_sizes
from latebind.program.whole_numbers import divides, find_limits

WARM_BATCHES = (1, 4)  # torch.compile treats size 1 specially
WARM_SIZES = 2  # of named dimensions: the largest and the smallest, which may be 1


class Inductor(Backend):
    """`torch.compile` with frozen weights, which may be used in place."""

    compiles = True
    quick = False

    def unavailable(self, device: str = HOST) -> str | None:
        """Check for a C++ compiler, and on CUDA for Triton, both of which Inductor needs."""
        if device != HOST and importlib.util.find_spec("triton") is None:
            return "torch.compile needs Triton on CUDA: pip install triton, or use --backend eager"
        if any(shutil.which(compiler) for compiler in ("g++", "clang++")):
            return None
        return "torch.compile needs a C++ compiler: install g++ or clang++"

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        """Compile now for a batch of one and for larger ones, so that no request waits for a compiler.

        That takes seconds unless torch's own cache has the result. Compiled programs raise for an index out of range,
        so they are compiled on rows within the limits of the inputs.
        """
        if (node := next(filter(divides, graph.nodes), None)) is not None:
            raise ExportError(f"{node.name!r} divides whole numbers by what may be 0, which ends the process")
        torch.set_num_threads(use.threads)
        stage = InductorStage(rebuild(graph, weights, device=use.device), sized=bool(graph.dims))
        specs, sizes = find_limits(graph, weights), list(islice(tried_sizes(graph.dims, 1), WARM_SIZES))
        for batch, each in product(WARM_BATCHES, sizes if graph.dims else sizes[:1]):
            rows = [
                torch.full((batch, *spec.shape), spec.filler, dtype=getattr(torch, spec.dtype), device=use.device)
                for spec in at_size(specs, each)
            ]
            stage(*rows)
        return stage


class InductorStage:
    """A stage as two compiled programs: one for a single row, one for any larger batch. Any thread may call it.

    If the graph has named dimensions (`sized`), both are for any size.

    Torch recompiles for a tensor of another kind (made in inference mode, or with an offset into its memory), in
    another mode, and for some sizes. If several threads meet such a case, each of them compiles, until torch refuses
    to go on (`recompile_limit`). So all calls are made to look alike except for their size, and only one thread runs
    a size for the first time.
    """

    def __init__(self, module: GraphModule, *, sized: bool = False) -> None:
        options: dict[str, str | int | bool | Callable[..., Any]] = {"freezing": True}
        self._one = torch.compile(module, fullgraph=True, dynamic=sized, options=options)
        self._many = torch.compile(module, fullgraph=True, dynamic=True, options=options)
        self._met: set[tuple[int, ...]] = set()
        self._first_run = Lock()  # held by the thread that runs a size for the first time

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program for this batch size."""
        batch, sizes = inputs[0].shape[0], tuple([size for tensor in inputs for size in tensor.shape])
        with nullcontext() if sizes in self._met else self._first_run:
            with torch.inference_mode(False), torch.no_grad():
                plain = tuple([_plain(tensor) for tensor in inputs])
                found: tuple[Tensor, ...] = (self._one if batch == 1 else self._many)(*plain)
            self._met.add(sizes)
        return copy_input_views(found, plain)


def _plain(tensor: Tensor) -> Tensor:
    """Return the same rows as a tensor not made in inference mode, at the start of its memory.

    It goes through DLPack, which supports tensors of every device.
    """
    capsule = torch.to_dlpack(tensor.contiguous())  # type: ignore[attr-defined]
    plain: Tensor = torch.from_dlpack(capsule)  # type: ignore[attr-defined]
    return plain
