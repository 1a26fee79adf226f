"""Runs on the cores of all workers: the same answers, whoever has which cores from one stage to the next."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve
from latebind.engine.slots import ModelSlots, SlotMemory, create_file, file_bytes
from latebind.engine.wide import BATCHES, Share, share_of, widen, with_wide_if_faster
from latebind.engine.worker import LoadedModel, Worker, load_model
from latebind.program.load import load_program
from latebind.repository.listing import find_models
from latebind.sequence.stored import load_sequence
from tests.networks import Chain
from tests.program.test_backends import usable
from tests.sequences import backwards, rows_of, some_sentences

SLOTS = 6
TWO = EngineConfig(backend="openvino", cores=(0, 1), workers=2)


def loaded(models: Path, name: str) -> LoadedModel:
    """Return a model as two workers run it, and on the cores of both."""
    (path,) = find_models(models, [name])
    model = load_model(path, EngineConfig(backend=usable("openvino")), streams=2)
    if name == "backwards":
        return replace(model, wide=load_sequence(model.directory, threads=2, backend="openvino", lone=True))
    return replace(model, wide=load_program(model.directory, threads=2, backend="openvino"))


@pytest.fixture(scope="module")
def chain(models: Path) -> LoadedModel:
    """`chain` as `loaded` returns it, compiled once: nobody changes it."""
    return loaded(models, "chain")


def taking(model: LoadedModel, seconds: float) -> LoadedModel:
    """Return the model with a profile by which every stage takes so long."""
    return replace(model, costs=replace(model.costs, stages=(Curve((1,), (seconds,)),) * model.spec.stages))


def with_workers(model: LoadedModel, count: int) -> tuple[list[Worker], ModelSlots]:
    fd = create_file()
    os.ftruncate(fd, file_bytes([model.spec], {model.spec.name: SLOTS}))
    memory = SlotMemory(fd, [model.spec], {model.spec.name: SLOTS})
    os.close(fd)
    crew = [model, *(model.twin() for _ in range(1, count))]
    return [Worker({model.spec.name: one}, memory) for one in crew], memory.models[0]


def test_stages_of_one_request_may_have_all_cores_or_not_in_any_order(chain: LoadedModel) -> None:
    (worker, other), rows = with_workers(chain, 2)
    rows.inputs[0][:] = np.random.default_rng(0).standard_normal(rows.inputs[0].shape)
    with torch.inference_mode():
        for stage in range(chain.spec.stages):
            worker.run(Run(0, "chain", stage, (1,), (1,), wide=stage % 2 == 0))
            other.run(Run(1, "chain", stage, (2,), (2,), wide=stage % 2 == 1))
        wanted = Chain()(torch.from_numpy(rows.inputs[0][1:3]))
    torch.testing.assert_close(torch.from_numpy(rows.outputs[0][1:3]), wanted, rtol=1e-4, atol=1e-5)


def test_so_may_stages_of_a_batch(chain: LoadedModel) -> None:
    (worker,), rows = with_workers(chain, 1)
    rows.inputs[0][:] = np.random.default_rng(0).standard_normal(rows.inputs[0].shape)
    with torch.inference_mode():
        for stage in range(chain.spec.stages):
            worker.run(Run(0, "chain", stage, (1, 2, 3), (1, 2, 3), wide=stage % 2 == 0))
        wanted = Chain()(torch.from_numpy(rows.inputs[0][1:4]))
    torch.testing.assert_close(torch.from_numpy(rows.outputs[0][1:4]), wanted, rtol=1e-4, atol=1e-5)


def test_so_may_reading_and_each_step_of_an_answer(models: Path) -> None:
    (worker,), rows = with_workers(loaded(models, "backwards"), 1)
    sentences = some_sentences(SLOTS, seed=2)
    rows.inputs[0][:] = rows_of(sentences).numpy()
    for slot in range(SLOTS):
        worker.run(Run(0, "backwards", 0, (slot,), (slot,), wide=slot % 2 == 0))
        steps = 0
        while not worker.run(Run(0, "backwards", 1, (slot,), (slot,), wide=steps % 2 == 0)).exited:
            steps += 1
    assert [[int(word) for word in row if word] for row in rows.outputs[0]] == [backwards(words) for words in sentences]


@pytest.mark.parametrize(
    ("share", "keeps"),
    [(Share(0.5, True), True), (Share(0.89, True), True), (Share(0.91, True), False), (Share(1.0, False), True)],
)
def test_a_model_is_compiled_for_it_only_where_that_saves_a_tenth_or_nobody_is_sure(
    chain: LoadedModel, share: Share, keeps: bool
) -> None:
    wide, model = chain.wide, replace(chain, wide=None)
    assert wide is not None
    count = model.spec.stages
    shares = {1: (share,) * count, 4: (Share(0.4, True),) * count}
    found = with_wide_if_faster(model, wide, [1.0] * count, shares)
    curve = Curve((1, 4), (share.value, 0.4))
    assert (found.wide is wide, found.costs.wide) == ((True, (curve,) * count) if keeps else (False, ()))


@pytest.mark.parametrize(
    ("own", "all_cores", "share"),
    [
        ([2.0, 2.1, 9.0], [1.2, 1.0, 1.1], Share(0.5, True)),
        ([2.0, 2.1, 2.0], [4.0, 5.0, 3.0], Share(1.0, False)),
        ([2.0, 4.0, 4.0], [1.0, 1.0, 1.0], Share(0.5, False)),
    ],
)
def test_a_share_is_that_of_the_quickest_and_not_sure_where_most_runs_took_longer(
    own: list[float], all_cores: list[float], share: Share
) -> None:
    assert share_of(own, all_cores) == share


def test_what_is_short_anyway_or_has_no_cores_to_borrow_stays_as_it_is(chain: LoadedModel) -> None:
    model = replace(chain, wide=None)
    slow = taking(model, 1.0)
    assert widen(taking(model, 1e-5), TWO, workers=2).wide is None
    assert widen(slow, TWO, workers=1).wide is None
    assert widen(slow, EngineConfig(cores=(0, 1), workers=2, wide=False), workers=2).wide is None
    assert widen(replace(slow, program=replace(slow.program, backend="eager")), TWO, workers=2).wide is None


@pytest.mark.parametrize("name", ["chain", "backwards"])
def test_what_it_takes_is_measured_as_a_share_of_each_stage(models: Path, name: str) -> None:
    (path,) = find_models(models, [name])
    model = load_model(path, EngineConfig(backend=usable("openvino")), streams=2)
    found = widen(taking(model, 1.0), TWO, workers=2)
    assert (found.wide is None) is (found.costs.wide == ())
    assert all(0.0 < share <= 1.0 for curve in found.costs.wide for share in curve.seconds)


def test_larger_batches_are_measured_where_their_requests_take_little_time(chain: LoadedModel) -> None:
    model = replace(chain, wide=None)
    most, stages = model.spec.max_batch, model.spec.stages
    for seconds, wanted in ((0.01, (1, 2)), (0.001, (1, max(size for size in BATCHES if size <= most))), (0.1, (1,))):
        found = widen(taking(model, seconds / stages), TWO, workers=2)
        assert found.wide is None or {curve.batches for curve in found.costs.wide} == {wanted}
