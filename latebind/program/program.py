"""A loaded model: its stages as callables, its tensors and its costs. One thread at a time: each worker has a twin."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from latebind.domain.costs import EMPTY_STAGE, ModelCosts
from latebind.domain.model import ModelSpec
from latebind.program.backends import StageFunction, hand_on, twin
from latebind.program.device import HOST
from latebind.program.measure import made_up_inputs, profile_stages, profiled_batches, run_chain


@dataclass(frozen=True, slots=True)
class Program:
    """A model that can run. `stages[i](*inputs)` gives a tuple that is the input of stage i + 1.

    What a stage gives holds until that stage is called again; what `run` and its kin give is the caller's.

    `activations[i]` says what the single tensor behind stage i is, batch dimension left out (none for the last).
    `entry` says that stage 0 is empty: it hands on the input, so that a learned cache can stand before the network.
    `device` is where inputs, activations and outputs lie.
    `costs_fit` is False where the costs were measured on another machine or with other settings: call
    `profile_program` and serve with what it returns.
    """

    spec: ModelSpec
    costs: ModelCosts
    backend: str
    threads: int
    stages: tuple[StageFunction, ...]
    activations: tuple[tuple[int, ...], ...]
    costs_fit: bool
    entry: bool = False
    device: torch.device = HOST

    def twin(self) -> "Program":
        """Return the program for another thread, over the same weights."""
        return replace(self, stages=tuple(map(twin, self.stages)))

    def with_entry(self) -> "Program":
        """Return the same network behind an empty stage, which costs nothing; it must take one tensor."""
        if self.entry:
            return self
        (taken,) = self.spec.inputs
        return replace(
            self,
            spec=replace(self.spec, stages=self.spec.stages + 1),
            costs=replace(self.costs, stages=(EMPTY_STAGE, *self.costs.stages)),
            stages=(hand_on, *self.stages),
            activations=(taken.shape, *self.activations),
            entry=True,
        )

    def without_entry(self) -> "Program":
        """Return the network alone: without exits an empty stage is only one more boundary to pass."""
        if not self.entry:
            return self
        return replace(
            self,
            spec=replace(self.spec, stages=self.spec.stages - 1),
            costs=replace(self.costs, stages=self.costs.stages[1:]),
            stages=self.stages[1:],
            activations=self.activations[1:],
            entry=False,
        )

    def run(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Return the outputs, each `(B, ...)`, for inputs `(B, ...)`."""
        return _lasting(run_chain(self.stages, inputs))

    def run_through(self, stage: int, *inputs: Tensor) -> Tensor:
        """Return the activation `(B, ...)` behind stage `stage`, counted from 0, for inputs of the model."""
        return _lasting(run_chain(self.stages[: stage + 1], inputs))[0]


def _lasting(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in outputs)


def profile_program(program: Program) -> Program:
    """Measure the program on this machine, on rows that are made up, and return it with those costs."""
    rows = made_up_inputs(program.spec.inputs, program.spec.max_batch, device=program.device)
    curves = profile_stages(program.stages, rows, profiled_batches(program.spec.max_batch))
    return replace(program, costs=replace(program.costs, stages=curves), costs_fit=True)
