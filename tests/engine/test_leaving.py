"""Whoever has its answer before the rest of its batch: it may stay, or its row may, without being answered again."""

import os
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.engine.slots import ModelSlots, SlotMemory, create_file, file_bytes
from latebind.engine.worker import LoadedModel, Worker, load_model
from latebind.program.backends import StageFunction
from tests.digits import Built
from tests.halves import at_half, chain

REQUESTS = tuple(range(10, 18))
SLOTS = tuple(range(8))


class Bench:
    """A worker whose lookups answer half of eight digits behind each stage that has one, and what its stages saw."""

    def __init__(self, built: Built, *, compact: bool) -> None:
        model = load_model(built.directory.path, EngineConfig())
        self.rows = built.unseen[: len(SLOTS)]
        lookups = {stage: at_half(lookup, model, stage, self.rows) for stage, lookup in model.lookups.items()}
        self.model = replace(model, lookups=lookups, costs=replace(model.costs, aside=False))
        self.network = chain(model).run(self.rows)[0].numpy()
        self.sizes: list[int] = []
        seen = replace(chain(model), stages=tuple(self._counted(stage) for stage in chain(model).stages))
        fd = create_file()
        os.ftruncate(fd, file_bytes([model.spec], {model.spec.name: len(SLOTS)}))
        memory = SlotMemory(fd, [model.spec], {model.spec.name: len(SLOTS)})
        os.close(fd)
        self.slots: ModelSlots = memory.models[0]
        self.slots.inputs[0][:] = self.rows.numpy()
        self.worker = Worker({model.spec.name: replace(self.model, program=seen)}, memory, compact=compact)

    @property
    def answers(self) -> NDArray[np.float32]:
        """The rows that the door would read."""
        return np.asarray(self.slots.outputs[0], dtype=np.float32)  # the same memory

    @property
    def stages(self) -> int:
        return self.model.spec.stages

    def run(self, stage: int, requests: tuple[int, ...] = REQUESTS) -> tuple[int, ...]:
        """Return who leaves."""
        slots = tuple(SLOTS[REQUESTS.index(request)] for request in requests)
        return self.worker.run(Run(0, self.model.spec.name, stage, requests, slots)).exited

    def end(self, requests: tuple[int, ...]) -> None:
        """Have them end, as the driver does for those that leave."""
        for request in requests:
            self.worker.owners.end(request)

    def _counted(self, stage: StageFunction) -> StageFunction:
        def counted(*inputs: Tensor) -> tuple[Tensor, ...]:
            self.sizes.append(len(inputs[0]))
            return stage(*inputs)

        return counted


@pytest.fixture
def staying(built: Built) -> Iterator[Bench]:
    with torch.inference_mode():
        yield Bench(built, compact=True)


@pytest.fixture
def whole(built: Built) -> Iterator[Bench]:
    with torch.inference_mode():
        yield Bench(built, compact=False)


def first_with_lookup(model: LoadedModel) -> int:
    return min(model.lookups)


def test_whoever_stays_with_its_batch_is_reported_once_and_its_first_answer_stands(staying: Bench) -> None:
    left: list[int] = []
    for stage in range(staying.stages):
        exited = staying.run(stage)
        for request in exited:
            staying.answers[SLOTS[REQUESTS.index(request)]] = np.nan  # what is written again shows
        left += exited
        if len(left) == len(REQUESTS):
            break
    assert len(left) >= len(REQUESTS) // 2
    assert sorted(set(left)) == sorted(left)
    for place, request in enumerate(REQUESTS):
        expected = np.full(10, np.nan) if request in left else staying.network[place]
        np.testing.assert_allclose(staying.answers[place], expected, rtol=1e-4, atol=1e-5)
    assert set(staying.sizes) == {len(REQUESTS)}


def test_whoever_begins_in_the_slot_of_one_that_stayed_is_answered(staying: Bench) -> None:
    first = first_with_lookup(staying.model)
    left = [request for stage in range(first + 1) for request in staying.run(stage)]
    staying.end(REQUESTS)
    again = [request for stage in range(first + 1) for request in staying.run(stage)]
    assert left
    assert again == left


def test_rows_of_those_who_left_run_on_and_nobody_writes_to_their_slots(whole: Bench) -> None:
    wanted = REQUESTS
    for stage in range(whole.stages):
        gone = whole.run(stage, wanted)
        whole.end(gone)
        assert set(gone) <= set(wanted)
        wanted = tuple(request for request in wanted if request not in gone)
        for request in gone:
            whole.answers[SLOTS[REQUESTS.index(request)]] = np.nan  # the slot has a new owner
        if not wanted:
            break
    assert set(whole.sizes) == {len(REQUESTS)}
    for place, request in enumerate(REQUESTS):
        expected = whole.network[place] if request in wanted else np.full(10, np.nan)
        np.testing.assert_allclose(whole.answers[place], expected, rtol=1e-4, atol=1e-5)


def test_a_batch_that_is_not_compacted_answers_like_one_that_is(built: Built) -> None:
    answers, sizes = [], []
    for compact in (True, False):
        with torch.inference_mode():
            bench = Bench(built, compact=compact)
            wanted = REQUESTS
            for stage in range(bench.stages):
                gone = bench.run(stage, wanted)
                bench.end(gone)
                wanted = tuple(request for request in wanted if request not in gone)
                if not wanted:
                    break
        answers.append(bench.answers.copy())
        sizes.append(bench.sizes)
    np.testing.assert_allclose(answers[0], answers[1], rtol=1e-4, atol=1e-5)
    assert sum(sizes[0]) < sum(sizes[1])


def test_a_batch_that_others_are_let_past_goes_on_with_those_who_are_left(whole: Bench) -> None:
    first = first_with_lookup(whole.model)
    for stage in range(first + 1):
        gone = whole.run(stage)
        whole.end(gone)
    wanted = tuple(request for request in REQUESTS if request not in gone)
    whole.run(0, gone[:1])  # the slot of one that left has a new owner
    whole.sizes.clear()
    for stage in range(first + 1, whole.stages):
        gone = whole.run(stage, wanted)
        wanted = tuple(request for request in wanted if request not in gone)
        if not wanted:
            break
    assert whole.sizes[0] < len(REQUESTS)
    for place in (place for place, request in enumerate(REQUESTS) if request in wanted):
        np.testing.assert_allclose(whole.answers[place], whole.network[place], rtol=1e-4, atol=1e-5)
