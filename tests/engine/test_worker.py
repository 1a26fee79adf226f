"""A worker by itself: batches that are let past others, catch up and become one, with real stages."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig, PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.events import Arrived
from latebind.engine.activations import Activations, Batch
from latebind.engine.slots import ModelSlots, SlotMemory, create_file, file_bytes
from latebind.engine.worker import LoadedModel, Worker, load_model
from latebind.program.program import Program
from latebind.repository.listing import find_models
from latebind.scheduler import Scheduler
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


def test_what_is_put_aside_is_kept_when_the_stage_writes_to_its_memory_again() -> None:
    kept = Activations()
    output = torch.tensor([[1.0], [2.0]])
    kept.keep(Run(0, "chain", 0, (1, 2), (5, 6)), Batch((1, 2), (output,)))
    kept.put_aside()
    output.fill_(9.0)
    (taken,) = kept.take(Run(0, "chain", 1, (2, 1), (6, 5))).tensors
    assert taken.tolist() == [[2.0], [1.0]]


def test_of_a_batch_some_may_go_on_before_others() -> None:
    kept = Activations()
    output = torch.tensor([[1.0], [2.0], [3.0], [4.0]])
    kept.keep(Run(0, "chain", 0, (1, 2, 3, 4), (5, 6, 7, 8)), Batch((1, 2, 3, 4), (output,)))
    kept.mark_exited([2])
    (some,) = kept.take(Run(0, "chain", 1, (3,), (7,))).tensors
    kept.keep(Run(0, "chain", 1, (3,), (7,)), Batch((3,), (some * 10,)))
    output.fill_(9.0)
    (others,) = kept.take(Run(0, "chain", 1, (4, 1), (8, 5))).tensors
    assert others.tolist() == [[4.0], [1.0]]
    assert kept.take(Run(0, "chain", 2, (3,), (7,))).tensors[0].tolist() == [[30.0]]


def test_rows_of_those_who_left_are_not_put_aside_and_a_slot_that_is_used_again_keeps_none() -> None:
    kept = Activations()
    output = torch.tensor([[1.0], [2.0], [3.0]])
    kept.keep(Run(0, "chain", 0, (1, 2, 3), (5, 6, 7)), Batch((1, 2, 3), (output,)))
    kept.mark_exited([1, 3])
    kept.begin(Run(0, "chain", 0, (4,), (8,)))
    for request, slot in ((1, 5), (3, 7)):
        with pytest.raises(KeyError):
            kept.take(Run(0, "chain", 1, (request,), (slot,)))
    kept.begin(Run(0, "chain", 0, (9,), (6,)))  # the second has gone too, and its slot has a new owner
    with pytest.raises(KeyError):
        kept.take(Run(0, "chain", 1, (2,), (6,)))


def test_where_nobody_leaves_with_its_answer_all_go_on_with_their_batch() -> None:
    kept = Activations(leave=False)
    output = torch.tensor([[1.0], [2.0]])
    kept.keep(Run(0, "chain", 0, (1, 2), (5, 6)), Batch((1, 2), (output,)))
    kept.mark_exited([1])
    kept.begin(Run(0, "chain", 0, (3,), (7,)))
    (taken,) = kept.take(Run(0, "chain", 1, (1, 2), (5, 6))).tensors
    assert taken.tolist() == [[1.0], [2.0]]
