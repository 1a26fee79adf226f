"""A loaded model: its stages as callables, its tensors and its costs. For one thread: each worker has a twin."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

from latebind.domain.costs import EMPTY_STAGE, Grid, ModelCosts
from latebind.domain.model import ModelSpec
from latebind.program.arrays import over_arrays, pass_through
from latebind.program.backends import StageFunction, run_chain, twin
from latebind.program.cut import entry_of
from latebind.program.device import HOST
from latebind.program.graph import Graph
from latebind.program.measure import made_up_inputs, made_up_tensors, profile_stages
from latebind.program.metadata import profiled_batches

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Program:
    """A model that can run. `stages[i](*inputs)` returns a tuple that is the input of stage i + 1.

    Outputs of a stage are valid until that stage is called again. Outputs of `run` and `run_through` belong to the
    caller.

    `graphs[i]` is what stage i computes, and says which tensors it takes and returns. `device` is where inputs,
    activations and outputs are. `costs_fit` is False if the costs were measured on another machine or with other
    settings: then call `profile_program` and serve what it returns.
    """

    spec: ModelSpec
    costs: ModelCosts
    backend: str
    threads: int
    stages: tuple[StageFunction, ...]
    graphs: tuple[Graph, ...]
    costs_fit: bool
    device: str = HOST

    @property
    def calls(self) -> tuple[Callable[..., tuple[Any, ...]], ...]:
        """The stages as an engine calls them, on one thread: over arrays on the host, else over tensors."""
        if self.device != HOST:
            return self.stages
        inputs = [graph.inputs for graph in self.graphs] or [()] * len(self.stages)
        return tuple(over_arrays(stage, taken) for stage, taken in zip(self.stages, inputs, strict=True))

    @property
    def activations(self) -> tuple[tuple[int, ...], ...]:
        """The shape of the single tensor after each stage but the last, without the batch dimension."""
        return tuple(graph.inputs[0].shape for graph in self.graphs[1:])

    @property
    def entry(self) -> bool:
        """Whether stage 0 is empty: it returns its input, so that a learned cache can stand before the network."""
        return len(self.graphs) > 1 and not self.graphs[0].whole.nodes

    def twin(self) -> Self:
        """Return the program for another thread, over the same weights."""
        return replace(self, stages=tuple(map(twin, self.stages)))

    def with_entry(self) -> "Program":
        """Return the same network after an empty stage, which costs nothing. The network must take one tensor."""
        if self.entry:
            return self
        graphs, grids = (entry_of(self.graphs[0]), *self.graphs), (EMPTY_STAGE, *self.costs.stages)
        return self._of((pass_through, *self.stages), graphs, grids)

    def without_entry(self) -> "Program":
        """Return the network without its empty stage, which without learned caches is only one more boundary."""
        if not self.entry:
            return self
        return self._of(self.stages[1:], self.graphs[1:], self.costs.stages[1:])

    def _of(self, stages: tuple[StageFunction, ...], graphs: tuple[Graph, ...], grids: tuple[Grid, ...]) -> "Program":
        spec, costs = replace(self.spec, stages=len(stages)), replace(self.costs, stages=grids)
        return replace(self, spec=spec, costs=costs, stages=stages, graphs=graphs)

    def run(self, *inputs: "Tensor") -> tuple["Tensor", ...]:
        """Return the outputs, each `(B, ...)`, for inputs `(B, ...)`."""
        return tuple(tensor.clone() for tensor in run_chain(self.stages, inputs))

    def run_through(self, stage: int, *inputs: "Tensor") -> "Tensor":
        """Return the activation `(B, ...)` after stage `stage`, counted from 0, for inputs of the model."""
        return run_chain(self.stages[: stage + 1], inputs)[0].clone()


def profile_program(program: Program) -> Program:
    """Return the program with costs measured on this machine, on made-up rows."""
    spec, rows = program.spec, tuple[Any, ...]()
    if program.device == HOST:
        rows = made_up_inputs(spec.inputs, spec.max_batch)
    else:
        rows = made_up_tensors(spec.inputs, spec.max_batch, program.device)
    batches = profiled_batches(spec.max_batch)
    grids = profile_stages(program.calls, rows, batches, specs=spec.inputs, dims=spec.dims)
    return replace(program, costs=replace(program.costs, stages=grids), costs_fit=True)
