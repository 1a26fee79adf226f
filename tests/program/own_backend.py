"""A backend of one's own; all else that it takes is the line `"own": "tests.program.own_backend:Own"` in `BACKENDS`."""

from collections.abc import Mapping

import torch
from torch import Tensor

from latebind.program.backends import Backend, CompileOptions, StageFunction
from latebind.program.eager import copy_input_views, rebuild
from latebind.program.graph import Graph


class Own(Backend):
    """Runs a graph as torch does, on the CPU."""

    def unavailable(self, device: str = "cpu") -> str | None:
        return None if device == "cpu" else f"it computes on the CPU, not on {device}: use --backend eager"

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        torch.set_num_threads(use.threads)
        run = rebuild(graph, weights)

        def stage(*inputs: Tensor) -> tuple[Tensor, ...]:
            with torch.inference_mode():
                return copy_input_views(run(*inputs), inputs)

        return stage


class Wrong(Own):
    """Takes no number for larger than 1."""

    def compile(self, graph: Graph, weights: Mapping[str, Tensor], use: CompileOptions) -> StageFunction:
        stage = super().compile(graph, weights, use)
        return lambda *inputs: stage(*(tensor.clamp(max=1.0) for tensor in inputs))
