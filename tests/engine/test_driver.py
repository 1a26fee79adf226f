"""The driver with a model that computes nothing, one thread and no process."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from io import BytesIO
from math import inf
from pathlib import Path
from threading import Event as Flag
from threading import get_ident
from typing import Any, TypeVar, cast

import numpy as np
import pytest
import torch

from latebind.domain.actions import Branch, Map, Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.costs import Curve, Grid
from latebind.domain.errors import LatebindError
from latebind.domain.eventlog import EventLog, read_log
from latebind.domain.events import Arrived, Cancelled, Event, StageDone
from latebind.domain.model import ModelSpec, StageKind, StepSpec, TensorSpec
from latebind.domain.query import Node, Query, lay_out
from latebind.domain.sizes import Dim
from latebind.engine.device import DeviceStaging
from latebind.engine.driver import (
    COMPILE_SECONDS,
    LATE_SECONDS,
    MOST_UNCOUNTED,
    TIMES,
    Driver,
    longest_seconds,
)
from latebind.engine.mapping import Steps
from latebind.engine.process import EventLogFile
from latebind.engine.shared import (
    COMPILES,
    IDLE,
    LOADER,
    NO_STEP,
    PLACE,
    WORKERS,
    WROTE,
    NoticeReader,
    Owners,
    Place,
    Running,
)
from latebind.engine.slots import SlotMemory
from latebind.engine.staging import HostStaging
from latebind.engine.worker import Worker
from tests.engine.rows import memory_of
from tests.models import SCORES, VECTOR, served

PATIENCE = 60.0
Seen = TypeVar("Seen")


class Idle:
    """Runs nothing; `look` is called meanwhile."""

    def __init__(self, look: Callable[[Run], object] = lambda run: None) -> None:
        self.look = look

    def report_exits_to(self, report: object) -> None:
        del report

    def run(self, action: Run) -> StageDone:
        self.look(action)
        return StageDone(action.worker)

    def close(self) -> None:
        pass


def driver_of(worker: Idle, *coming: list[Event], config: SchedulerConfig | None = None, **others: Any) -> Driver:
    """Return a driver of `net`, or what `config` says, which hears these events, list by list."""
    left = list(coming)
    given: dict[str, Any] = {
        "listen": lambda seconds: left.pop(0) if left else None,
        "wake": lambda: None,
        "send": lambda data: None,
        "staging": HostStaging([], cast(SlotMemory, None)),
        "owners": Owners(),
    }
    config = config or SchedulerConfig((served("net", stages=1),))
    return Driver(config, [cast(Worker, worker)], **{**given, **others})


def seen(
    look: Callable[[Driver], Seen], *, stages: int, requests: int = 1, recompiled: Collection[str] = ()
) -> list[Seen]:
    """Return what is to be seen as each stage of each request runs, one request after another, and at the end."""
    sent, found = list[bytes](), list[Seen]()
    coming: list[list[Event]] = [[Arrived("net", 1e9, (number,), (0,))] for number in range(requests)]
    config = SchedulerConfig((served("net", stages=stages),))
    worker = Idle(lambda run: found.append(look(driver)))
    driver = driver_of(worker, *coming, config=config, send=sent.append, recompiled=recompiled)
    driver._serve_thread()
    assert len(sent) == requests
    return [*found, look(driver)]


def figures(driver: Driver) -> tuple[int, int, int]:
    """Return how many requests are pending and answered, and how many stages have begun."""
    net = cast(Any, driver.snapshot())["models"]["net"]
    return net["pending"], net["requests"]["answered"], net["stage_runs"]


def test_figures_say_what_is_under_way_though_nobody_has_an_answer_yet() -> None:
    assert seen(figures, stages=2) == [(1, 0, 1), (1, 0, 2), (0, 1, 2)]


def test_what_is_not_counted_yet_does_not_grow_with_the_stages_of_a_request() -> None:
    waiting = seen(lambda driver: len(driver._uncounted), stages=3 * MOST_UNCOUNTED, requests=2)
    assert max(waiting) < MOST_UNCOUNTED
    assert waiting[-1] == 0


def test_numpy_says_nothing_of_values_that_are_no_numbers_on_the_threads_of_the_driver() -> None:
    inside, _ = seen(lambda driver: {np.geterr()[error] for error in ("divide", "over", "invalid")}, stages=1)
    assert inside == {"ignore"}
    assert np.geterr()["invalid"] == "warn"


def test_calls_that_are_heard_of_together_have_come_at_one_time() -> None:
    file, config = BytesIO(), SchedulerConfig((served("net", stages=1),))
    coming: list[Event] = [Arrived("net", 1e9, (n,), (n,), more=n < 3) for n in (1, 2, 3)]
    driver_of(Idle(), coming, config=config, log=EventLog(file, config))._serve_thread()
    file.seek(0)
    entries = [entry for entry in read_log(file)[1] if isinstance(entry.event, Arrived)]
    assert len({entry.now for entry in entries}) == 1
    assert [len(entry.actions) for entry in entries] == [0, 0, 1]


def test_what_was_left_is_done_beside_serving_until_the_driver_is_to_end(caplog: pytest.LogCaptureFixture) -> None:
    done, both, ends, running = list[int](), Flag(), Flag(), Running(1)
    places = list[Place]()

    def listen(seconds: float | None) -> list[Event] | None:
        del seconds
        assert both.wait(PATIENCE)
        return None

    driver = driver_of(Idle(), listen=listen, wake=lambda: None, running=running)

    def fails(error: Exception) -> None:
        raise error

    def last() -> None:
        places.extend(map(Place._make, PLACE.iter_unpack(running.memory)))
        both.set()
        assert driver._ended.wait(PATIENCE)
        done.append(get_ident())

    errors = [partial(fails, RuntimeError("no memory for it")), partial(fails, ValueError("no such layout"))]
    works: list[Callable[[], None]] = [lambda: done.append(get_ident()), *errors, last, ends.set]
    driver.run([(1, work) for work in works])
    assert done == [get_ident()] * 2
    assert not ends.is_set()
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]  # the first one is expected
    assert "net: a stage is not compiled for batches, so rows run one by one: no memory for it" in caplog.text
    assert (places[LOADER].model, places[LOADER].stage) == (1, COMPILES)  # who is to blame if this ends the process
    after = [Place._make(place) for place in PLACE.iter_unpack(running.memory)]
    assert after[LOADER].model == IDLE


@pytest.mark.parametrize(("left", "times"), [(True, 3), (False, 1)])
def test_a_batch_may_take_as_long_as_its_rows_one_by_one_while_it_is_not_compiled_for(left: bool, times: int) -> None:
    running, ran, due = Running(1), Flag(), list[float]()
    come: list[list[Event]] = [[Arrived("net", 1e9, (n,), (n,), more=n < 3) for n in (1, 2, 3)]]

    def look(run: Run) -> None:
        assert len(run.requests) == 3
        due.append(Place(*PLACE.unpack_from(running.memory, WORKERS * PLACE.size)).due)
        ran.set()

    def wait() -> None:
        assert ran.wait(PATIENCE)

    def listen(seconds: float | None) -> list[Event] | None:
        del seconds
        if come:
            return come.pop()
        wait()
        return None

    config = SchedulerConfig((served("net", stages=1, seconds=1.0),))
    since = time.monotonic()
    driver_of(Idle(look), config=config, listen=listen, running=running).run([(1, wait)] if left else [])
    assert since + times * TIMES < due[0] < time.monotonic() + times * TIMES


class Failing(Idle):
    """Says that it ran on a worker that there is not."""

    def run(self, action: Run) -> StageDone:
        return StageDone(action.worker + 7)


def test_if_one_thread_fails_all_end_and_none_listens_on_for_calls_that_nobody_would_answer() -> None:
    come, woken = [Arrived("net", 1e9, (1,), (0,))], Flag()

    def listen(seconds: float | None) -> list[Event]:
        del seconds
        if come:
            return [come.pop()]
        assert woken.wait(PATIENCE)
        return []

    with pytest.raises(LatebindError):
        driver_of(Failing(), listen=listen, wake=woken.set).run()


def test_a_stage_that_may_be_compiled_when_it_meets_a_batch_size_has_longer_then() -> None:
    def allowed(driver: Driver) -> float:
        """Return how long what the worker does may still take."""
        return Place(*PLACE.unpack_from(driver._running.memory, WORKERS * PLACE.size)).due - time.monotonic()

    first, again, resting = seen(allowed, stages=1, requests=2, recompiled=["net"])
    assert first > COMPILE_SECONDS > again
    assert resting == inf


def test_a_stage_may_take_many_times_what_its_largest_batch_with_the_longest_inputs_takes() -> None:
    assert longest_seconds(served("net", stages=2, seconds=LATE_SECONDS)) == [TIMES * LATE_SECONDS] * 2
    assert longest_seconds(served("net", stages=2, seconds=1e-6)) == [LATE_SECONDS] * 2
    net = served("net", stages=1, seconds=1.0, per_row=0.5, max_batch=2)
    tensor = TensorSpec("words", "int64", (50,), padding=0, sizes=("length",))
    words = replace(net.spec, inputs=(tensor,), dims=(Dim("length", 1, 50),))
    (grid,) = net.costs.stages
    longer = Curve((1, 2), (1.1, 1.7))
    costs = replace(net.costs, stages=(Grid((1, 2), (*grid.curves, longer)),))
    assert longest_seconds(net) == [TIMES * 1.5]
    assert longest_seconds(replace(net, spec=words, costs=costs)) == [pytest.approx(TIMES * (1.5 + 49 * 0.2))]


def test_a_worker_that_is_stuck_in_a_stage_is_seen_while_another_thread_listens_and_left_behind_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("latebind.engine.driver.END_SECONDS", 0.05)
    begun, go, running = Flag(), Flag(), Running(1)
    come: list[list[Event]] = [[Arrived("net", 1e9, (1,), (0,))]]
    looks: list[list[Place]] = []

    def stay(run: Run) -> None:
        begun.set()
        go.wait(PATIENCE)

    def listen(seconds: float | None) -> list[Event] | None:
        del seconds
        if come:
            return come.pop()
        assert begun.wait(PATIENCE)
        looks.append([Place(*place) for place in PLACE.iter_unpack(running.memory)])
        return None

    config = SchedulerConfig((served("net", stages=1, seconds=1.0),))
    since = time.monotonic()
    driver_of(Idle(stay), config=config, listen=listen, running=running).run()
    assert "a stage has not ended" in caplog.text
    place = looks[0][WORKERS]
    assert (place.model, place.stage) == (1, 0)
    assert since + TIMES < place.due < time.monotonic() + TIMES  # by its profile it takes a second
    go.set()


@pytest.mark.parametrize("place", ["/dev/full", "folder/that/is/not/there"])
def test_a_log_that_cannot_be_written_is_told_of_once_and_given_up(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    log = EventLogFile(Path(place), SchedulerConfig((served("net", stages=1),)))
    for number in range(1000):
        log.write(0.0, Arrived("net", 1e9, (number,), (0,)), ())
    log.close()
    assert [place in record.message for record in caplog.records] == [True]


class Decodes(Idle):
    """A sequence model whose answers have as many tokens as the number of their request."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = Counter[int]()

    def run(self, action: Run) -> StageDone:
        self.steps.update(action.requests if action.stage else ())
        return StageDone(action.worker, tuple(one for one in action.requests if self.steps[one] == one))


def test_each_step_tells_of_one_token_more_of_those_that_stream_and_the_end_tells_of_the_last() -> None:
    net, chain = served("net", stages=2), served("chain", stages=2)
    net = replace(net, spec=replace(net.spec, kinds=(StageKind.STATIC, StageKind.DECODER)))
    coming: list[Event] = [
        Arrived("net", 1e9, (3,), (0,), streams=True),
        Arrived("net", 1e9, (2,), (1,)),
        Arrived("chain", 1e9, (9,), (0,), streams=True),  # it has no decoder, so there are no tokens to tell of
    ]
    sent = list[bytes]()
    driver = driver_of(Decodes(), coming, config=SchedulerConfig((net, chain)), send=sent.append)
    driver._serve_thread()
    told = list(NoticeReader().feed(b"".join(sent)))
    assert [(one.node, one.option) for one in told if one.request == 3] == [(WROTE, 1), (WROTE, 2), (NO_STEP, 0)]
    assert sorted(one.request for one in told if one.node == NO_STEP) == [2, 3, 9]
    assert not driver._tokens


NODES = (Node("gate", ("gate",), (1.0,)), Node("cars", ("gate", "cars"), (0.5, 1.0), (0,), ((0,),), guarded=True))
TRAFFIC = ModelSpec("traffic", "1", (VECTOR,), (SCORES,), 2, 4, steps=tuple(StepSpec(n.name, n.models) for n in NODES))
QUERIED = SchedulerConfig((served("gate"), served("cars")), queries=(Query(TRAFFIC, NODES),), slots=4)
ROWS = lay_out(["gate", "cars"], QUERIED.queries, QUERIED.slots)


class Copies(Steps):
    """Copies the input of `traffic` to each of its steps; the second runs where the first number is above 0."""

    def __init__(self, memory: SlotMemory, staging: HostStaging | DeviceStaging) -> None:
        super().__init__((), memory.by_name, ROWS, {}, staging)
        self._slots = memory.by_name

    def map(self, action: Map) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if action.node < len(NODES):
            option = action.chosen[action.node]
            model = NODES[action.node].models[option]
            places = [ROWS.row("traffic", action.node, option, slot) for slot in action.slots]
            self._slots[model].inputs[0][places] = self._slots["traffic"].inputs[0][list(action.slots)]
            if self._staging.copies:
                self._staging.copy_in(model, places)
        return (), ()

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        inputs = self._slots["traffic"].inputs[0]
        return tuple([(bool(inputs[slot, 0] > 0),) * len(action.nodes) for slot in action.slots])


class Deaf(HostStaging):
    """Fails whoever tells it anything."""

    def copy_in(self, model: str, slots: object) -> None:
        raise AssertionError(f"told of {model}")


@pytest.mark.parametrize("on_device", [True, False])
def test_the_inputs_of_requests_and_steps_are_on_their_device_as_they_run(on_device: bool) -> None:
    memory = memory_of(*(model.spec for model in QUERIED.models), TRAFFIC, rows=ROWS.total)
    inputs = memory.by_name["traffic"].inputs[0]
    inputs[:, 0] = 1.0, -1.0, 2.0, -2.0
    models = ["gate", "cars"]
    staging = DeviceStaging(models, memory, "cpu") if on_device else Deaf(models, memory)
    values = Counter[float]()

    def look(run: Run) -> None:
        if run.stage == 0:
            (rows,) = staging.stream().inputs(run)
            values.update(rows[:, 0].tolist())

    rounds = 50  # many more queries than there are rows
    coming: list[list[Event]] = []
    for number in range(rounds):
        requests = [1 + 12 * number + 3 * slot for slot in range(4)]
        coming.append([Arrived("traffic", 1e9, (one,), (slot,)) for slot, one in enumerate(requests)])
        coming[-1].append(Cancelled(requests[2]))  # a step of it may be mapped and never begins
        coming[-1].append(Arrived("cars", 1e9, (10**6 + number,), (0,)))
    steps = Copies(memory, staging)
    driver = driver_of(Idle(look), *coming, config=QUERIED, staging=staging, owners=memory.owners, steps=steps)
    with torch.inference_mode():
        driver._serve_thread()
    assert driver._failure is None
    assert values[1.0] == 2 * rounds == 2 * values[-1.0]
