"""A worker whose rows differ in size: batches are padded, join and shrink, and each row has its own answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from latebind.domain.actions import Run
from latebind.domain.model import TensorSpec
from latebind.engine.device import DeviceStaging
from latebind.engine.loaded import LoadedModel
from latebind.engine.slots import Extents, SlotMemory
from latebind.engine.staging import HostStaging, Staging
from latebind.engine.worker import Worker
from latebind.program.backends import run_chain
from latebind.program.device import find_device
from latebind.program.program import Program
from tests.engine.lengths import WIDTH, WORDS, mapped, spec_of, texts

MEMBERS = ("host", "rows", pytest.param("cuda", marks=pytest.mark.gpu))
SLOTS = 12
LONGEST = 20


class Traffic:
    """Requests of random lengths in slots, which run through a worker in any company."""

    def __init__(self, worker: Worker, model: LoadedModel, memory: SlotMemory, extents: Extents) -> None:
        self.worker, self.model, self.memory, self.extents = worker, model, memory, extents
        assert memory.models[0].sized is not None
        assert isinstance(model.program, Program)
        self.sized = memory.models[0].sized
        self.stages = model.program.stages
        self.random = np.random.default_rng(0)
        self.free = list(range(SLOTS))
        self.count = 0
        self.begun: dict[int, tuple[int, int]] = {}  # request -> slot, and the next stage
        self.extent: dict[int, int] = {}  # by slot

    def come(self, length: int, rows: int) -> tuple[int, ...]:
        """Have a call of so many rows come; return its requests."""
        slots = tuple(self.free.pop() for _ in range(min(rows, len(self.free))))
        if not slots:
            return ()
        begin = self.extents.take(self.sized.bytes_of(len(slots), (length,)), len(slots))
        assert begin is not None
        self.sized.place(begin, slots, (length,))
        requests = tuple(range(self.count, self.count + len(slots)))
        self.count += len(slots)
        for request, slot in zip(requests, slots, strict=True):
            self.extent[slot] = begin
            self.sized.row(slot, 0)[...] = self.random.integers(1, WORDS, length)
            self.sized.row(slot, 1)[...] = 1
            self.begun[request] = slot, 0
        return requests

    def run(self, requests: tuple[int, ...], stage: int) -> None:
        slots = tuple(self.begun[request][0] for request in requests)
        self.worker.run(Run(0, self.model.spec.name, stage, requests, slots))
        for request, slot in zip(requests, slots, strict=True):
            self.begun[request] = slot, stage + 1
            if stage + 1 == self.model.spec.stages:
                self.check(slot)
                self.end(request)

    def check(self, slot: int) -> None:
        """See that the answer is the one that the row has alone."""
        inputs = tuple([torch.from_numpy(self.sized.row(slot, number).copy())[None] for number in range(2)])
        given = run_chain(self.stages, inputs)
        for number, wanted in enumerate(given, 2):
            found = self.sized.row(slot, number).astype(np.float32)
            np.testing.assert_allclose(found, wanted[0].numpy(), rtol=1e-4, atol=1e-5)

    def end(self, request: int) -> None:
        self.worker.owners.end(request)
        slot, _ = self.begun.pop(request)
        self.sized.row(slot, 0)[...] = WORDS + 99  # nothing reads it any more
        self.extents.free(self.extent[slot])
        self.free.append(slot)


@contextmanager
def traffic(name: str, *, pads: bool = True) -> Iterator[Traffic]:
    spec = spec_of(longest=LONGEST, pads=pads, max_batch=SLOTS)
    model = texts(spec)
    with mapped(spec, slots=SLOTS) as (memory, extents, _):
        device = find_device("cuda" if name == "cuda" else "cpu")
        staging: Staging = HostStaging([spec.name], memory)
        if name != "host":
            staging = DeviceStaging([spec.name], memory, device)
        try:
            with torch.inference_mode():
                worker = Worker({spec.name: texts(spec, device)}, memory, stream=staging.stream())
                yield Traffic(worker, model, memory, extents)
        finally:
            staging.close()


@pytest.mark.parametrize("name", MEMBERS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_row_has_its_own_answer_in_whatever_company_it_runs(name: str, data: st.DataObject) -> None:
    with traffic(name) as at:
        for step in data.draw(st.lists(st.sampled_from(("come", "end", "run", "run", "run")), max_size=40)):
            if step == "come":
                came = at.come(data.draw(st.integers(1, LONGEST)), data.draw(st.integers(1, 3)))
                if len(came) > 1 and data.draw(st.booleans()):
                    at.run(came, 0)  # rows of one call lie together
            elif at.begun and step == "end":
                at.end(data.draw(st.sampled_from(sorted(at.begun))))
            elif at.begun:
                stage = data.draw(st.sampled_from(sorted({stage for _, stage in at.begun.values()})))
                able = [request for request, (_, next_one) in at.begun.items() if next_one == stage]
                number = data.draw(st.integers(1, len(able)))
                at.run(tuple(data.draw(st.permutations(able))[:number]), stage)
        while at.begun:
            stage = min(stage for _, stage in at.begun.values())
            at.run(tuple(request for request, (_, next_one) in at.begun.items() if next_one == stage), stage)


def test_a_batch_is_as_long_as_the_longest_row_that_is_left() -> None:
    with traffic("host") as at:
        seen: list[tuple[int, ...]] = []
        first, attend, last = at.stages

        def watched(given: torch.Tensor) -> tuple[torch.Tensor, ...]:
            seen.append(tuple(given.shape))
            return attend(given)

        assert isinstance(at.model.program, Program)
        program = replace(at.model.program, stages=(first, watched, last))
        at.worker = Worker({at.model.spec.name: replace(at.model, program=program)}, at.memory)
        requests = tuple(at.come(length, 1)[0] for length in (3, 20, 5, 4))
        at.run(requests, 0)
        at.end(requests[1])
        at.run((requests[0], requests[2]), 1)
        late = at.come(9, 1)
        at.run(late, 0)
        at.run((*late, requests[3]), 1)
        assert seen == [(2, 5, WIDTH + 1), (2, 9, WIDTH + 1)]
        at.run((*late, *requests[2:]), 2)


def test_rows_of_unequal_sizes_never_run_together_where_padding_changes_answers() -> None:
    with traffic("host", pads=False) as at:
        one, two, alike = (at.come(length, 1)[0] for length in (3, 5, 3))
        with pytest.raises(ValueError, match="need one size"):
            at.run((one, two), 0)
        at.run((one, alike), 0)
        at.run((two,), 0)
        with pytest.raises(ValueError, match="need one size"):
            at.run((one, two, alike), 1)
        for requests in ((one, alike), (two,)):
            at.run(requests, 1)
            at.run(requests, 2)


def test_a_stage_that_returns_other_shapes_than_it_says_raises() -> None:
    with traffic("host") as at:
        assert isinstance(at.model.program, Program)
        wrong = TensorSpec("passed", "float32", (2 * LONGEST, WIDTH + 1), sizes=("2*L", WIDTH + 1))
        graphs = tuple(
            replace(graph, inputs=(wrong,)) if stage else graph for stage, graph in enumerate(at.model.program.graphs)
        )
        model = replace(at.model, program=replace(at.model.program, graphs=graphs))
        at.worker = Worker({at.model.spec.name: model}, at.memory)
        with pytest.raises(ValueError, match="came out as"):
            at.run(at.come(3, 1), 0)
