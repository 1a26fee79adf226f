"""A worker by itself, with real stages, lookups and slots; and what the log says of models that raise."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue
from threading import Event
from typing import cast
from weakref import ref

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from latebind.domain.actions import Run
from latebind.domain.config import EngineConfig
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.events import Exited, StageDone
from latebind.engine.loaded import LoadedModel, load_model
from latebind.engine.shared import By, Owners
from latebind.engine.slots import ModelSlots
from latebind.engine.worker import (
    MOST_WAITING,
    Activations,
    Aside,
    Asked,
    Batch,
    Failures,
    Worker,
    left_of,
)
from latebind.learned.head import Floats
from latebind.learned.lookup import Lookup
from latebind.program.pieces import NotResident
from latebind.program.program import Program
from latebind.repository.directory import ModelDirectory
from latebind.repository.listing import find_models
from tests.digits import Built
from tests.engine.rows import memory_of
from tests.engine.test_interleavings import LOOKED, RATES, SPEC, STAGES
from tests.halves import at_half, chain

SLOTS = 12


@pytest.fixture(scope="module")
def model(models: Path) -> LoadedModel:
    (path,) = find_models(models, ["chain"])
    return load_model(path, EngineConfig())


def with_worker(model: LoadedModel) -> tuple[Worker, ModelSlots]:
    memory = memory_of(model.spec, rows=SLOTS)
    rows = memory.models[0]
    rows.inputs[0][:] = np.random.default_rng(0).standard_normal(rows.inputs[0].shape)
    return Worker({model.spec.name: model}, memory), rows


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


def begun(requests: tuple[int, ...]) -> tuple[Owners, Activations]:
    """Return the activations of a worker that these requests have begun on, each in the slot of its number."""
    owners = Owners()
    owners.begin(Run(0, "chain", 0, requests, requests))
    return owners, Activations(owners)


def going_on(stage: int, *requests: int) -> Run:
    return Run(0, "chain", stage, requests, requests)


def test_of_a_request_that_has_ended_nothing_is_kept() -> None:
    owners, kept = begun((1, 2, 3))
    output = torch.tensor([[1.0], [2.0], [3.0]])
    kept.keep(Batch((1, 2, 3), (output,)))
    owners.end(1)
    kept.put_aside()
    (row,) = owners.live[2].activation.tensors
    assert row.untyped_storage().nbytes() == 4, "a row keeps those of others"
    gone = [ref(row), ref(output)]
    del row, output
    owners.end(2)
    assert [one() for one in gone] == [None, None]
    assert kept.take(going_on(1, 1, 2)).requests == ()
    assert kept.take(going_on(1, 2, 3)).requests == (3,)
    assert kept.take(going_on(1, 3)).tensors[0].tolist() == [[3.0]]


class Fails:
    """A learned cache that raises for several rows at once, and answers none alone."""

    there = True

    def __call__(self, activation: Floats, *about: object) -> tuple[Floats, NDArray[np.bool_]]:
        """Look at `(B, 1)`."""
        if len(activation) > 1:
            raise ValueError("a row is poisoned")
        return activation, np.zeros(1, np.bool_)


def test_requests_whose_lookup_raised_run_its_stage_again_from_the_same_inputs() -> None:
    memory = memory_of(SPEC, rows=SLOTS)
    costs = ModelCosts(at_any_length(Curve((1, SLOTS), (0.01, 0.02))) * STAGES, LOOKED, RATES)
    stages = (lambda rows: (rows + 1.0,),) * STAGES
    program = Program(SPEC, costs, "eager", 1, stages, (), costs_fit=True)
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


REQUESTS = tuple(range(10, 18))
EIGHT = tuple(range(8))
SECONDS = 30.0


class Bench:
    """A worker that asks the lookups of digits aside, the slots it works in, and what it reports."""

    def __init__(self, model: LoadedModel) -> None:
        self.model = model
        memory = memory_of(model.spec, rows=len(EIGHT))
        self.slots: ModelSlots = memory.models[0]
        self.reported: Queue[Exited] = Queue()
        self.worker = Worker({model.spec.name: model}, memory)
        self.worker.report_exits_to(self.reported.put)

    @property
    def answers(self) -> NDArray[np.float32]:
        """The rows that the frontend would read."""
        return np.asarray(self.slots.outputs[0], dtype=np.float32)  # the same memory

    def run(self, stage: int, requests: tuple[int, ...] = REQUESTS) -> StageDone:
        slots = tuple(EIGHT[REQUESTS.index(request)] for request in requests)
        return self.worker.run(Run(0, self.model.spec.name, stage, requests, slots))

    def whole(self) -> NDArray[np.float32]:
        """Return what the network alone answers, `(8, 10)`."""
        return chain(self.model).run(torch.from_numpy(self.slots.inputs[0]))[0].numpy()


@contextmanager
def bench(built: Built, *, thresholds: bool = True, only: int | None = None) -> Iterator[Bench]:
    """Lookups, or the `only` one behind that stage, answer half of the rows; without `thresholds` they raise."""
    model = load_model(built.directory.path, EngineConfig())
    rows = built.unseen[: len(EIGHT)]
    with torch.inference_mode():
        lookups = {stage: at_half(lookup, model, stage, rows) for stage, lookup in model.lookups.items()}
        if only is not None:
            lookups = {only: lookups[only]}
        if not thresholds:
            lookups = {stage: replace(lookup, thresholds={}) for stage, lookup in lookups.items()}
        found = Bench(replace(model, lookups=lookups, costs=replace(model.costs, aside=True)))
        found.slots.inputs[0][:] = rows.numpy()
        yield found


def test_the_network_leaves_alone_what_a_lookup_has_answered_and_each_answer_names_its_version(built: Built) -> None:
    with bench(built, only=0) as at:  # one behind a later stage may answer before the end, or not
        at.worker.adopt(at.model.spec.name, 3, None)
        assert at.run(0) == StageDone(0), "nobody exits at the boundary: those who hit are told later"
        told = at.reported.get(timeout=SECONDS)
        assert (told.worker, told.stage) == (0, 0)
        exited, answered = told.requests, at.answers.copy()
        answers, hits = at.model.lookups[0](torch.from_numpy(at.slots.inputs[0]))
        assert exited == tuple(request for request, hit in zip(REQUESTS, hits, strict=True) if hit)
        np.testing.assert_allclose(answered[hits], answers[hits], rtol=1e-5)
        assert at.slots.versions.tolist() == [3 if one in exited else 0 for one in REQUESTS]
        at.worker.adopt(at.model.spec.name, 4, None)
        for stage in range(1, at.model.spec.stages):  # the scheduler has not heard of it yet
            at.run(stage)
        for place, (request, row) in enumerate(zip(REQUESTS, at.whole(), strict=True)):
            expected = answered[place] if request in exited else row
            np.testing.assert_allclose(at.answers[place], expected, rtol=1e-4, atol=1e-5)
        assert len(exited) == len(REQUESTS) // 2
        assert at.slots.versions.tolist() == [3 if one in exited else 4 for one in REQUESTS]


def test_a_lookup_that_fails_leaves_the_answer_to_the_network(built: Built) -> None:
    logger, logged = logging.getLogger("latebind.engine.worker"), Queue[logging.LogRecord]()
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

    def __init__(self) -> None:
        self.began, self.may_end, self.asked = Queue[None](), Event(), 0

    def __call__(self, asked: Asked) -> tuple[int, ...]:
        self.asked += 1
        self.began.put(None)
        assert self.may_end.wait(SECONDS)
        return ()


def asked_of(owners: Owners, request: int) -> Asked:
    """Return a lookup for a request that has begun in slot 0."""
    run = Run(0, "net", 0, (request,), (0,))
    owners.begin(run)
    return Asked(cast(Lookup, None), 0, run, torch.zeros(1, 1), (), ())


def test_few_lookups_wait_and_those_that_nobody_waits_for_are_not_made() -> None:
    owners, slow = Owners(), Slow()
    aside = Aside(owners, slow)
    aside.start(lambda exited: None)
    for request in range(1, 100):
        aside.ask(asked_of(owners, request))
        if request == 1:
            slow.began.get(timeout=SECONDS)
        if request != 98:  # the network has answered all others
            with owners.answering(By.NETWORK, (request,), (0,)):
                pass
            owners.end(request)
        assert len(aside._waiting) <= MOST_WAITING
    slow.may_end.set()
    slow.began.get(timeout=SECONDS)  # that of 98
    aside.close()
    assert slow.asked == 2


def test_a_lookup_that_has_left_memory_meanwhile_is_no_failure(caplog: pytest.LogCaptureFixture) -> None:
    def gone(asked: Asked) -> tuple[int, ...]:
        raise NotResident(f"no page for {asked.action.requests}")

    owners = Owners()
    aside = Aside(owners, gone)
    aside.ask(asked_of(owners, 1))
    assert aside.perform() is None
    assert not aside._waiting
    assert not caplog.messages


def failing(number: int) -> ValueError:
    try:
        raise ValueError(f"row {number} is bad")
    except ValueError as error:
        return error


def test_each_kind_is_told_once_and_then_how_often(caplog: pytest.LogCaptureFixture) -> None:
    failures = Failures(logging.getLogger("failures"))
    for number in range(619):
        failures.log("stage 0 of net", failing(number), f" for request {number}")
    failures.log("stage 1 of net", failing(7), " for request 7")
    failures.log("stage 0 of net", KeyError("another"), " for request 8")
    first, tenth, hundredth, *others = caplog.messages
    assert first == "stage 0 of net failed for request 0"
    assert tenth.startswith("stage 0 of net has failed 10 times with ValueError at ")
    assert hundredth.startswith("stage 0 of net has failed 100 times with ValueError at ")
    assert others == ["stage 1 of net failed for request 7", "stage 0 of net failed for request 8"]
    assert caplog.text.count("Traceback") == 2
    assert "row 0 is bad" in caplog.text


def test_whoever_is_left_of_a_batch_keeps_its_slot_and_its_level() -> None:
    run = Run(0, "net", 3, (1, 2, 3), (7, 8, 9), (2, 0, 1))
    assert left_of(run, (3, 1)) == Run(0, "net", 3, (3, 1), (9, 7), (1, 2))
    assert left_of(Run(0, "net", 3, (1, 2), (7, 8)), (2,)) == Run(0, "net", 3, (2,), (8,))
