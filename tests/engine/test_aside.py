"""Lookups beside a network that goes on, on a worker of its own: real stages, real lookups, real slots."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging.handlers import QueueHandler
from queue import Queue
from threading import Event
from typing import cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.events import Exited, StageDone
from latebind.engine.aside import MOST_WAITING, Aside, Asked
from latebind.engine.owners import Owners
from latebind.engine.slots import ModelSlots, SlotMemory, create_file, file_bytes
from latebind.engine.worker import LoadedModel, Worker, load_model
from latebind.learned.lookup import Lookup
from latebind.program.backends import NotResident
from tests.digits import Built
from tests.halves import at_half, chain

REQUESTS = tuple(range(10, 18))
SLOTS = tuple(range(8))
SECONDS = 30.0


class Bench:
    """A worker that asks the lookups of digits aside, the slots it works in, and what it reports."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        fd = create_file()
        os.ftruncate(fd, file_bytes([model.spec], {model.spec.name: len(SLOTS)}))
        memory = SlotMemory(fd, [model.spec], {model.spec.name: len(SLOTS)})
        os.close(fd)
        self.slots: ModelSlots = memory.models[0]
        self.reported: Queue[Exited] = Queue()
        self.worker = Worker({model.spec.name: model}, memory)
        self.worker.report_exits_to(self.reported.put)

    @property
    def answers(self) -> NDArray[np.float32]:
        """The rows that the door would read."""
        return np.asarray(self.slots.outputs[0], dtype=np.float32)  # the same memory

    def run(self, stage: int, requests: tuple[int, ...] = REQUESTS) -> StageDone:
        slots = tuple(SLOTS[REQUESTS.index(request)] for request in requests)
        return self.worker.run(Run(0, self.model.spec.name, stage, requests, slots))

    def whole(self) -> NDArray[np.float32]:
        """Return what the network alone answers, `(8, 10)`."""
        return chain(self.model).run(torch.from_numpy(self.slots.inputs[0]))[0].numpy()


@contextmanager
def bench(built: Built, *, thresholds: bool = True, only: int | None = None) -> Iterator[Bench]:
    """Lookups, or the `only` one behind that stage, answer half of the rows; without `thresholds` they raise."""
    model = load_model(built.directory.path, EngineConfig())
    rows = built.unseen[: len(SLOTS)]
    with torch.inference_mode():
        lookups = {stage: at_half(lookup, model, stage, rows) for stage, lookup in model.lookups.items()}
        if only is not None:
            lookups = {only: lookups[only]}
        if not thresholds:
            lookups = {stage: replace(lookup, thresholds={}) for stage, lookup in lookups.items()}
        found = Bench(replace(model, lookups=lookups, costs=replace(model.costs, aside=True)))
        found.slots.inputs[0][:] = rows.numpy()
        yield found


def test_nobody_exits_at_the_boundary_and_those_who_hit_are_told_later(built: Built) -> None:
    with bench(built) as at:
        assert at.run(0) == StageDone(0)
        told = at.reported.get(timeout=SECONDS)
        assert (told.worker, told.stage) == (0, 0)
        answers, hits = at.model.lookups[0](torch.from_numpy(at.slots.inputs[0]))
        assert told.requests == tuple(request for request, hit in zip(REQUESTS, hits, strict=True) if hit)
        for place in np.flatnonzero(hits):
            np.testing.assert_allclose(at.answers[place], answers[place], rtol=1e-5)


def test_the_end_of_the_network_leaves_alone_what_a_lookup_has_answered(built: Built) -> None:
    with bench(built, only=0) as at:  # one behind a later stage may answer before the end, or not
        at.run(0)
        exited = at.reported.get(timeout=SECONDS).requests
        answered = at.answers.copy()
        for stage in range(1, at.model.spec.stages):  # the scheduler has not heard of it yet
            at.run(stage)
        for place, (request, row) in enumerate(zip(REQUESTS, at.whole(), strict=True)):
            expected = answered[place] if request in exited else row
            np.testing.assert_allclose(at.answers[place], expected, rtol=1e-4, atol=1e-5)
        assert len(exited) == len(REQUESTS) // 2


def test_an_answer_names_the_version_in_use_whether_a_lookup_or_the_network_gave_it(built: Built) -> None:
    with bench(built, only=0) as at:
        at.worker.adopt(at.model.spec.name, 3, None)
        at.run(0)
        exited = at.reported.get(timeout=SECONDS).requests
        assert [at.slots.versions[slot] for slot in SLOTS] == [3 if one in exited else 0 for one in REQUESTS]
        for stage in range(1, at.model.spec.stages):
            at.run(stage)
        assert at.slots.versions.tolist() == [3] * len(SLOTS)


def test_a_slot_that_has_another_owner_is_left_alone(built: Built) -> None:
    with bench(built) as at:
        at.run(0)
        at.reported.get(timeout=SECONDS)
        at.answers[:] = np.nan
        for request in REQUESTS:
            at.worker.owners.end(request)
        at.run(0, REQUESTS[:4])
        assert set(at.reported.get(timeout=SECONDS).requests) <= set(REQUESTS[:4])
        assert np.isnan(at.answers[4:]).all()


def test_a_lookup_that_fails_leaves_the_answer_to_the_network(built: Built) -> None:
    logger, logged = logging.getLogger("latebind.engine.aside"), Queue[logging.LogRecord]()
    handler = QueueHandler(logged)
    logger.addHandler(handler)
    try:
        with bench(built, thresholds=False) as at:
            at.run(0)
            assert "the network answers" in logged.get(timeout=SECONDS).getMessage()
            for stage in range(1, at.model.spec.stages):
                at.run(stage)
            np.testing.assert_allclose(at.answers, at.whole(), rtol=1e-4, atol=1e-5)
            at.worker.close()
            assert at.reported.empty()
    finally:
        logger.removeHandler(handler)


class Slow:
    """A learned cache that answers nobody, once it may."""

    there = True

    def __init__(self) -> None:
        self.began, self.may_end, self.asked = Queue[None](), Event(), 0

    def __call__(self, activation: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Look at `(B, 1)`."""
        self.asked += 1
        self.began.put(None)
        assert self.may_end.wait(SECONDS)
        return activation.numpy(), np.zeros(len(activation), np.bool_)


def test_few_lookups_wait_and_those_that_nobody_waits_for_are_not_made() -> None:
    owners, slow = Owners(), Slow()
    slots = ModelSlots((), (np.zeros((1, 1), np.float32),), np.zeros(1, np.int32))
    aside, lookup = Aside(owners, {"net": slots}), cast(Lookup, slow)
    aside.start(lambda exited: None)
    for request in range(1, 100):
        run = Run(0, "net", 0, (request,), (0,))
        owners.begin(run)
        aside.ask(lookup, 0, run, torch.zeros(1, 1))
        if request == 1:
            slow.began.get(timeout=SECONDS)
        if request != 98:  # the network has answered all others
            owners.left_to_network((request,))
            owners.end(request)
        assert len(aside._waiting) <= MOST_WAITING
    slow.may_end.set()
    slow.began.get(timeout=SECONDS)  # that of 98
    aside.close()
    assert slow.asked == 2


def aside_of(slots: int) -> tuple[Aside, ModelSlots, Run]:
    """Return what performs lookups, slots, and the first stage of requests 7, 8, ... in these, which has begun."""
    owners = Owners()
    run = Run(0, "net", 0, tuple(range(7, 7 + slots)), tuple(range(slots)))
    owners.begin(run)
    rows = ModelSlots((), (np.zeros((slots, 1), np.float32),), np.zeros(slots, np.int32))
    return Aside(owners, {"net": rows}), rows, run


def test_an_answer_names_the_version_that_gave_it() -> None:
    def first_hits(activation: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        return activation.numpy() + np.float32(5.0), np.array([True, False])

    aside, slots, run = aside_of(2)
    assert aside.perform(Asked(cast(Lookup, first_hits), 3, run, torch.zeros(2, 1))) == Exited(0, 0, (7,))
    assert slots.outputs[0].tolist() == [[5.0], [0.0]]
    assert slots.versions.tolist() == [3, 0]


def test_a_lookup_that_has_left_memory_meanwhile_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    asked = Queue[None]()

    def gone(activation: Tensor) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        asked.put(None)
        raise NotResident(f"no page for {len(activation)}")

    aside, _, run = aside_of(1)
    aside.start(lambda exited: None)
    for _ in range(2):
        aside.ask(cast(Lookup, gone), 0, run, torch.zeros(1, 1))
        asked.get(timeout=SECONDS)
    aside.close()
    assert not caplog.messages
