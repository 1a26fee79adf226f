"""What every way from slots to stages and back must keep, with streams that do all at once and those of a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.actions import Run
from latebind.domain.model import ModelSpec, TensorSpec
from latebind.engine.device import DeviceStaging
from latebind.engine.slots import ModelSlots, SlotMemory
from latebind.engine.staging import HostStaging, Staging
from latebind.program.arrays import filled
from latebind.program.device import find_device
from tests.engine.rows import memory_of

SLOTS = 6
SPEC = ModelSpec(
    "sums",
    "1",
    (TensorSpec("x", "float32", (3, 2)), TensorSpec("n", "int64", ())),
    (TensorSpec("sum", "float32", ()), TensorSpec("scaled", "float32", (3, 2))),
    1,
    SLOTS,
)

MEMBERS = ("host", "rows", pytest.param("cuda", marks=pytest.mark.gpu))


@contextmanager
def member(name: str, spec: ModelSpec, slots: int) -> Iterator[tuple[Staging, SlotMemory]]:
    memory = memory_of(spec, rows=slots)
    staging: Staging
    if name == "host":
        staging = HostStaging([spec.name], memory)
    else:
        staging = DeviceStaging([spec.name], memory, find_device("cuda" if name == "cuda" else "cpu"))
    try:
        with torch.inference_mode():
            yield staging, memory
    finally:
        staging.close()


class Requests:
    """Requests that come, are cancelled and run on one of two streams, as a scheduler and workers have them."""

    def __init__(self, staging: Staging, slots: ModelSlots) -> None:
        self._staging, self._slots = staging, slots
        self._streams = (staging.stream(), staging.stream())
        self._free = list(range(SLOTS))
        self._random = np.random.default_rng(0)
        self._count = 0
        self.waiting: dict[int, int] = {}  # the slot of each

    def come(self, number: int) -> None:
        slots = tuple(self._free.pop() for _ in range(min(number, len(self._free))))
        requests = tuple(range(self._count, self._count + len(slots)))
        self._count += len(slots)
        for slot in slots:
            self._slots.inputs[0][slot] = self._random.standard_normal((3, 2))
            self._slots.inputs[1][slot] = self._random.integers(100)
        if slots:
            self._staging.copy_in(SPEC.name, slots)
        self.waiting.update(zip(requests, slots, strict=True))

    def cancel(self, request: int) -> None:
        self._free.append(self.waiting.pop(request))

    def run(self, worker: int, requests: list[int]) -> None:
        """Run these as a batch; all have their own answers, and nothing else is written."""
        slots = [self.waiting[request] for request in requests]
        stream = self._streams[worker]
        for rows in self._slots.outputs:
            rows[:] = np.nan
        with stream.running():
            x, n = stream.inputs(Run(worker, SPEC.name, 0, tuple(requests), tuple(slots)))
            results: Any = (x.sum((1, 2)) + n, x * n[:, None, None])
            stream.answer(SPEC.name, slots, results, range(len(slots)))
        x_rows, n_rows = self._slots.inputs
        for slot, sums, scaled in zip(range(SLOTS), *self._slots.outputs, strict=True):
            if slot in slots:
                assert sums == pytest.approx(x_rows[slot].sum() + n_rows[slot], rel=1e-4, abs=1e-4)
                np.testing.assert_allclose(scaled, x_rows[slot] * n_rows[slot], rtol=1e-5)
            else:
                assert np.isnan(sums)
                assert np.isnan(scaled).all()
        for request in requests:
            self.cancel(request)


@pytest.mark.parametrize("name", MEMBERS)
@settings(max_examples=60)
@given(data=st.data())
def test_whoever_comes_goes_and_runs_in_any_order_has_its_own_answer(name: str, data: st.DataObject) -> None:
    with member(name, SPEC, SLOTS) as (staging, memory):
        requests = Requests(staging, memory.models[0])
        for step in data.draw(st.lists(st.sampled_from(("come", "cancel", "in order", "any order")), max_size=25)):
            if step == "come":
                requests.come(data.draw(st.integers(1, 3)))
            elif requests.waiting:
                order = list(requests.waiting)
                if step == "any order":
                    order = data.draw(st.permutations(order))
                number = data.draw(st.integers(1, len(order)))
                if step == "cancel":
                    requests.cancel(order[number - 1])
                else:
                    requests.run(data.draw(st.integers(0, 1)), order[:number])


@pytest.mark.parametrize("name", MEMBERS)
def test_a_result_goes_to_the_slot_that_it_belongs_to_and_others_stay_as_they_are(name: str) -> None:
    with member(name, SPEC, SLOTS) as (staging, memory):
        slots = memory.models[0]
        stream = staging.stream()
        slots.outputs[0][:] = -1.0
        staging.copy_in(SPEC.name, (4, 1, 2))
        with stream.running():
            x, _ = stream.inputs(Run(0, SPEC.name, 0, (7, 8, 9), (4, 1, 2)))
            sums: Any = filled(x, (3,))
            sums[1:2], sums[2:], sums[:1] = 20.0, 30.0, 10.0
            stream.answer(SPEC.name, (2, 4), (sums, filled(x, x.shape, 1.0)), (2, 0))
        assert slots.outputs[0].tolist() == [-1.0, -1.0, 30.0, -1.0, 10.0, -1.0]
