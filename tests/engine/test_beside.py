"""How much workers slow each other down when all run the same model."""

import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Lock

import torch
from torch import Tensor

from latebind.domain.costs import Curve
from latebind.engine.beside import beside
from latebind.program.load import load_program
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models

SECONDS = 0.004  # of a stage that the cores do not compute, so that others do not matter


class Waiting:
    """A stage that only waits, for so long, and for its `turn`."""

    def __init__(self, turn: AbstractContextManager[object]) -> None:
        self.turn = turn

    def twin(self) -> "Waiting":
        return Waiting(self.turn)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        with self.turn:
            time.sleep(SECONDS)
        return inputs


def of_stage(models: Path, stage: Waiting, *, seconds: float = 1e-9) -> tuple[Program, ModelDirectory]:
    """Return a program of this stage, whose profile says that it takes so long."""
    directory = ModelDirectory.open(find_models(models, ["chain"])[0])
    program = load_program(directory)
    costs = replace(program.costs, stages=(Curve((1,), (seconds,)),))
    return replace(program, stages=(stage,), costs=costs), directory


def test_workers_that_do_not_wait_for_each_other_take_as_long_as_alone(models: Path) -> None:
    program, directory = of_stage(models, Waiting(nullcontext()))
    with torch.inference_mode():
        assert 1.0 <= beside(program, directory, workers=2) < 1.3


def test_workers_that_take_turns_take_as_many_times_as_long_as_there_are(models: Path) -> None:
    program, directory = of_stage(models, Waiting(Lock()))
    assert 1.7 < beside(program, directory, workers=2) < 2.6
    assert 2.5 < beside(program, directory, workers=3) < 3.9


def test_models_that_read_few_weights_for_their_time_are_not_measured(models: Path) -> None:
    program, directory = of_stage(models, Waiting(Lock()), seconds=1.0)
    assert beside(program, directory, workers=2) == 1.0
