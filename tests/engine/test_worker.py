"""A worker by itself: batches that are let past others, catch up and become one, with real stages."""

import os
from dataclasses import replace
from pathlib import Path
from typing import cast
from weakref import ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig, PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.events import Arrived
from latebind.engine.activations import Activations, Batch
from latebind.engine.owners import Owners
from latebind.engine.slots import ModelSlots, SlotMemory, create_file, file_bytes
from latebind.engine.worker import LoadedModel, Worker, load_model
from latebind.learned.lookup import Lookup
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from latebind.scheduler import Scheduler
from tests.engine.test_interleavings import LOOKED, RATES, SPEC, STAGES
from tests.networks import Chain
from tests.playing import play

SLOTS = 12


@pytest.fixture(scope="module")
def model(models: Path) -> LoadedModel:
    (path,) = find_models(models, ["chain"])
    return load_model(path, EngineConfig())


def with_worker(model: LoadedModel) -> tuple[Worker, ModelSlots]:
    fd = create_file()
    os.ftruncate(fd, file_bytes([model.spec], {model.spec.name: SLOTS}))
    memory = SlotMemory(fd, [model.spec], {model.spec.name: SLOTS})
    os.close(fd)
    rows = memory.models[0]
    rows.inputs[0][:] = np.random.default_rng(0).standard_normal(rows.inputs[0].shape)
    return Worker({model.spec.name: model}, memory), rows


def check(rows: ModelSlots, slots: list[int]) -> None:
    """Compare the answers in these slots with what the module makes of each input by itself."""
    found, inputs = torch.from_numpy(rows.outputs[0]), torch.from_numpy(rows.inputs[0])
    wanted = torch.cat([Chain()(inputs[slot : slot + 1]) for slot in slots])
    torch.testing.assert_close(found[slots], wanted, rtol=1e-4, atol=1e-5)


def test_a_batch_that_was_let_past_another_joins_it(model: LoadedModel) -> None:
    worker, rows = with_worker(model)
    with torch.inference_mode():
        for stage, requests in ((0, (1, 2)), (1, (1, 2)), (0, (3,)), (0, (4,)), (1, (3, 4)), (2, (1, 2, 3, 4))):
            worker.run(Run(0, "chain", stage, requests, requests))
        for stage in range(3, model.spec.stages):
            worker.run(Run(0, "chain", stage, (1, 3, 4), (1, 3, 4)))  # 2 was cancelled
        check(rows, [1, 3, 4])


def test_the_first_stage_sees_the_slots_themselves_where_they_follow_each_other(model: LoadedModel) -> None:
    assert isinstance(model.program, Program)
    first, *others = model.program.stages
    seen: list[torch.Tensor] = []

    def watched(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        seen.extend(inputs)
        return first(*inputs)

    worker, rows = with_worker(replace(model, program=replace(model.program, stages=(watched, *others))))
    row = rows.inputs[0][0].nbytes
    with torch.inference_mode():
        worker.run(Run(0, "chain", 0, (1, 2, 3), (4, 5, 6)))
        worker.run(Run(0, "chain", 0, (4, 5), (1, 3)))
    here = rows.inputs[0].ctypes.data
    together, apart = (tensor.data_ptr() for tensor in seen)
    assert together == here + 4 * row
    assert not here <= apart < here + SLOTS * row


@settings(max_examples=50)
@given(data=st.data(), policy=st.sampled_from(("lazy", "oracle", "lazy+", "queues", "graph", "late")))
def test_whatever_the_schedule_answers_are_those_of_requests_alone(
    model: LoadedModel, data: st.DataObject, policy: str
) -> None:
    worker, rows = with_worker(model)
    hopes = dict.fromkeys(range(model.spec.stages - 1), 0.2)  # in vain, but who goes on with whom hangs on them
    served = ServedModel(model.spec, replace(model.costs, hit_rates=hopes), SLOTS)
    scheduler = Scheduler(SchedulerConfig((served,), 1, PolicyConfig(policy, max_batch=4, shed=False)))
    coming = [Arrived("chain", 1e9, (slot,), (slot,)) for slot in range(SLOTS)]
    replies = list(play(worker, scheduler, coming, lambda: data.draw(st.booleans())))
    assert sorted(reply.request for reply in replies) == list(range(SLOTS))
    with torch.inference_mode():
        check(rows, list(range(SLOTS)))


def begun(requests: tuple[int, ...]) -> tuple[Owners, Activations]:
    """Return the activations of a worker that these requests have begun on, each in the slot of its number."""
    owners = Owners()
    owners.begin(Run(0, "chain", 0, requests, requests))
    return owners, Activations(owners)


def going_on(stage: int, *requests: int) -> Run:
    return Run(0, "chain", stage, requests, requests)


def test_what_is_put_aside_is_kept_when_the_stage_writes_to_its_memory_again() -> None:
    owners, kept = begun((1, 2))
    output = torch.tensor([[1.0], [2.0]])
    kept.keep(Batch((1, 2), (output,)))
    kept.put_aside()
    output.fill_(9.0)
    (taken,) = kept.take(going_on(1, 2, 1)).tensors
    assert taken.tolist() == [[2.0], [1.0]]
    assert len(owners) == 2


def test_of_a_batch_some_may_go_on_before_others() -> None:
    owners, kept = begun((1, 2, 3, 4))
    output = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    kept.keep(Batch((1, 2, 3, 4), (output,)))
    owners.end(2)
    (some,) = kept.take(going_on(1, 3)).tensors
    output.fill_(30.0)
    assert some.tolist() == [[3.0]]
    kept.keep(Batch((3,), (output[:1],)))
    (others,) = kept.take(going_on(1, 4, 1)).tensors
    assert others.tolist() == [[4.0], [1.0]]
    output.fill_(9.0)
    kept.keep(Batch((4, 1), (others,)))
    assert kept.take(going_on(2, 3)).tensors[0].tolist() == [[30.0]]


def test_of_a_request_that_has_ended_nothing_is_kept() -> None:
    owners, kept = begun((1, 2, 3))
    output = torch.tensor([[1.0], [2.0], [3.0]])
    kept.keep(Batch((1, 2, 3), (output,)))
    owners.end(1)
    kept.put_aside()
    (row,) = cast(Batch, owners.activation(2)).tensors
    assert row.untyped_storage().nbytes() == 4, "a row keeps those of others"
    gone = [ref(row), ref(output)]
    del row, output
    owners.end(2)
    assert [one() for one in gone] == [None, None]
    assert kept.take(going_on(1, 1, 2)).requests == ()
    assert kept.take(going_on(1, 2, 3)).requests == (3,)
    assert kept.take(going_on(1, 3)).tensors[0].tolist() == [[3.0]]


def test_the_output_of_the_last_stage_goes_with_the_last_request_that_would_go_on_from_it() -> None:
    owners, kept = begun((1, 2))
    output = torch.tensor([[1.0], [2.0]])
    kept.keep(Batch((1, 2), (output,)))
    gone = ref(output)
    del output
    owners.end(1)
    assert gone() is not None
    owners.end(2)
    assert gone() is None


def test_requests_whose_stage_raised_may_run_it_again_apart() -> None:
    owners, kept = begun((1, 2, 3))
    for compact in (True, False):
        kept = Activations(owners, compact=compact)
        kept.keep(Batch((1, 2, 3), (torch.tensor([[1.0], [2.0], [3.0]]),)))
        kept.take(going_on(1, 1, 2, 3))  # the stage raises: its output is never kept
        (first,) = kept.take(going_on(1, 1, 2)).tensors
        assert first.tolist() == [[1.0], [2.0]]
        kept.keep(Batch((1, 2), (first * 10,)))
        assert kept.take(going_on(1, 3)).tensors[0].tolist() == [[3.0]]
        owners.end(3)
        assert kept.take(going_on(2, 1, 2)).tensors[0].tolist() == [[10.0], [20.0]]
        owners.begin(going_on(0, 3))


class Fails:
    """A learned cache that raises for several rows at once, and answers none alone."""

    there = True

    def __call__(self, activation: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Look at `(B, 1)`."""
        if len(activation) > 1:
            raise ValueError("a row is poisoned")
        return activation.numpy(), np.zeros(1, np.bool_)


def test_requests_whose_lookup_raised_run_its_stage_again_from_the_same_inputs() -> None:
    fd = create_file()
    os.ftruncate(fd, file_bytes([SPEC], {SPEC.name: SLOTS}))
    memory = SlotMemory(fd, [SPEC], {SPEC.name: SLOTS})
    os.close(fd)
    costs = ModelCosts((Curve((1, SLOTS), (0.01, 0.02)),) * STAGES, LOOKED, RATES)
    stages = (lambda rows: (rows + 1.0,),) * STAGES
    program = Program(SPEC, costs, "eager", 1, stages, ((1,),) * (STAGES - 1), costs_fit=True)
    loaded = LoadedModel(SPEC, costs, program, {1: cast(Lookup, Fails())}, cast(ModelDirectory, None))
    worker, slots = Worker({SPEC.name: loaded}, memory), memory.models[0]
    slots.inputs[0][:2, 0] = 5.0, 7.0

    def run(stage: int, *requests: int) -> None:
        worker.run(Run(0, SPEC.name, stage, requests, requests))

    run(0, 0, 1)
    with pytest.raises(ValueError, match="poisoned"):
        run(1, 0, 1)
    run(1, 0)
    run(1, 1)
    run(2, 0, 1)
    assert slots.outputs[0][:2, 0].tolist() == [8.0, 10.0]
