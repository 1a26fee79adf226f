"""The `compile` backend's machinery: torch.compile with frozen weights, once for batch 1 and once for larger ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from latebind.domain.model import TensorSpec
from latebind.program.graph import Graph
from latebind.program.rebuild import apart

WARM_BATCHES = (1, 4)  # torch.compile treats a size of 1 as another program


def compile_with_inductor(graph: Graph, module: GraphModule, device: torch.device) -> "InductorStage":
    """Return the compiled stage; both programs are made now, so that no request waits for a compiler."""
    stage = InductorStage(module)
    for batch in WARM_BATCHES:
        stage(*(_zeros(spec, batch, device) for spec in graph.inputs))
    return stage


class InductorStage:
    """A stage in two compiled programs: one for a single row, one for any larger batch."""

    def __init__(self, module: GraphModule) -> None:
        options: dict[str, str | int | bool | Callable[..., Any]] = {"freezing": True}
        self._one = torch.compile(module, fullgraph=True, dynamic=False, options=options)
        self._many = torch.compile(module, fullgraph=True, dynamic=True, options=options)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the program for this batch size."""
        with torch.no_grad():
            found: tuple[Tensor, ...] = (self._one if inputs[0].shape[0] == 1 else self._many)(*inputs)
        return apart(found, inputs)


def _zeros(spec: TensorSpec, batch: int, device: torch.device) -> Tensor:
    return torch.zeros((batch, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)
