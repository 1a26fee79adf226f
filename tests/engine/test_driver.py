"""The driver with a model that computes nothing, one thread and no process."""

import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace
from io import BytesIO
from math import inf
from pathlib import Path
from threading import Event as Flag
from typing import TypeVar, cast

import numpy as np
import pytest
import torch

from latebind.domain.actions import Branch, Map, Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import LatebindError
from latebind.domain.eventlog import EventLog, read_log
from latebind.domain.events import Arrived, Cancelled, Event, Exited, StageDone
from latebind.domain.model import ModelSpec, StageKind, StepSpec
from latebind.domain.query import Node, Query, lay_out
from latebind.engine.driver import MOST_UNCOUNTED, Driver
from latebind.engine.mapping import Mappings
from latebind.engine.messages import Ended, EndedReader
from latebind.engine.process import EventLogFile
from latebind.engine.running import COMPILE_SECONDS, PLACE, TIMES, Place, Running, size, worker_place
from latebind.engine.slots import Owners, SlotMemory
from latebind.engine.staging import DeviceStaging, HostStaging
from latebind.engine.worker import Worker
from tests.engine.rows import memory_of
from tests.models import SCORES, VECTOR, served

PATIENCE = 60.0
Seen = TypeVar("Seen")


class Idle:
    """Runs nothing; `look` is called meanwhile."""

    def __init__(self) -> None:
        self.look: Callable[[], None] = lambda: None

    def report_exits_to(self, report: Callable[[Exited], None]) -> None:
        del report

    def run(self, action: Run) -> StageDone:
        self.look()
        return StageDone(action.worker)


def seen(
    look: Callable[[Driver], Seen], *, stages: int, requests: int = 1, recompiled: Collection[str] = ()
) -> list[Seen]:
    """Return what is to be seen as each stage of each request runs, one request after another, and at the end."""
    worker, sent, found = Idle(), list[bytes](), list[Seen]()
    coming: list[list[Event]] = [[Arrived("net", 1e9, (number,), (0,))] for number in range(requests)]
    driver = Driver(
        SchedulerConfig((served("net", stages=stages),)),
        [cast(Worker, worker)],
        listen=lambda seconds: coming.pop() if coming else None,
        wake=lambda: None,
        send=sent.append,
        staging=HostStaging([], cast(SlotMemory, None)),
        recompiled=recompiled,
        owners=Owners(),
    )
    worker.look = lambda: found.append(look(driver))
    driver._serve_thread()
    assert len(sent) == requests
    return [*found, look(driver)]


def figures(driver: Driver) -> tuple[int, int, int]:
    """Return how many requests are pending and answered, and how many stages have begun."""
    driver.snapshot()
    net = driver._metrics.snapshot()["models"]["net"]
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
    file = BytesIO()
    config = SchedulerConfig((served("net", stages=1),))
    coming: list[list[Event]] = [[Arrived("net", 1e9, (n,), (n,), more=n < 3) for n in (1, 2, 3)]]
    driver = Driver(
        config,
        [cast(Worker, Idle())],
        listen=lambda seconds: coming.pop() if coming else None,
        wake=lambda: None,
        send=lambda data: None,
        staging=HostStaging([], cast(SlotMemory, None)),
        owners=Owners(),
        log=EventLog(file, config),
    )
    driver._serve_thread()
    file.seek(0)
    entries = [entry for entry in read_log(file)[1] if isinstance(entry.event, Arrived)]
    assert len({entry.now for entry in entries}) == 1
    assert [len(entry.actions) for entry in entries] == [0, 0, 1]


class Failing(Idle):
    """Says that it ran on a worker that there is not."""

    def run(self, action: Run) -> StageDone:
        return StageDone(action.worker + 7)

    def close(self) -> None:
        pass


def test_where_one_thread_fails_all_end_and_none_listens_on_for_calls_that_nobody_would_answer() -> None:
    come, woken = [Arrived("net", 1e9, (1,), (0,))], Flag()

    def listen(seconds: float | None) -> list[Event]:
        del seconds
        if come:
            return [come.pop()]
        assert woken.wait(PATIENCE)
        return []

    driver = Driver(
        SchedulerConfig((served("net", stages=1),)),
        [cast(Worker, Failing())],
        listen=listen,
        wake=woken.set,
        send=lambda data: None,
        staging=HostStaging([], cast(SlotMemory, None)),
        owners=Owners(),
    )
    with pytest.raises(LatebindError):
        driver.run()


def allowed(driver: Driver) -> float:
    """Return how long what the worker does may still take."""
    place = Place(*PLACE.unpack_from(driver._running._memory, worker_place(0) * PLACE.size))
    return place.due - time.monotonic()


def test_a_stage_that_may_be_compiled_when_it_meets_a_batch_size_has_longer_then() -> None:
    first, again, resting = seen(allowed, stages=1, requests=2, recompiled=["net"])
    assert first > COMPILE_SECONDS > again
    assert resting == inf


class Stuck(Idle):
    """Runs a stage that ends only when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go = Flag(), Flag()

    def run(self, action: Run) -> StageDone:
        self.begun.set()
        self.go.wait(PATIENCE)
        return StageDone(action.worker)

    def close(self) -> None:
        pass


def test_who_is_stuck_in_a_stage_is_seen_while_another_thread_listens_and_left_behind_at_the_end(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("latebind.engine.driver.END_SECONDS", 0.05)
    worker, running = Stuck(), Running(1, memory := bytearray(size(1)))
    come: list[list[Event]] = [[Arrived("net", 1e9, (1,), (0,))]]
    looks: list[list[Place]] = []

    def listen(seconds: float | None) -> list[Event] | None:
        del seconds
        if come:
            return come.pop()
        assert worker.begun.wait(PATIENCE)
        looks.append([Place(*place) for place in PLACE.iter_unpack(memory)])
        return None

    driver = Driver(
        SchedulerConfig((served("net", stages=1, seconds=1.0),)),
        [cast(Worker, worker)],
        listen=listen,
        wake=lambda: None,
        send=lambda data: None,
        staging=HostStaging([], cast(SlotMemory, None)),
        owners=Owners(),
        running=running,
    )
    begun = time.monotonic()
    driver.run()
    assert "a stage has not ended" in caplog.text
    place = looks[0][worker_place(0)]
    assert (place.model, place.stage) == (1, 0)
    assert begun + TIMES < place.due < time.monotonic() + TIMES  # by its profile it takes a second
    worker.go.set()


@pytest.mark.parametrize("place", ["/dev/full", "folder/that/is/not/there"])
def test_a_log_that_cannot_be_written_is_told_of_once_and_given_up(
    place: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = SchedulerConfig((served("net", stages=1),))
    log = EventLogFile(Path(place), config)
    for number in range(1000):
        log.write(0.0, Arrived("net", 1e9, (number,), (0,)), ())
    log.close()
    assert [place in record.message for record in caplog.records] == [True]


def test_a_log_is_whole_once_it_is_closed(tmp_path: Path) -> None:
    config = SchedulerConfig((served("net", stages=1),))
    log = EventLogFile(tmp_path / "log", config)
    log.write(0.0, Arrived("net", 1e9, (1,), (0,)), ())
    log.close()
    with (tmp_path / "log").open("rb") as file:
        assert len(list(read_log(file)[1])) == 1


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
    coming: list[list[Event]] = [
        [
            Arrived("net", 1e9, (3,), (0,), streams=True),
            Arrived("net", 1e9, (2,), (1,)),
            Arrived("chain", 1e9, (9,), (0,), streams=True),  # it has no decoder, so there are no tokens to tell of
        ]
    ]
    sent = list[bytes]()
    driver = Driver(
        SchedulerConfig((net, chain)),
        [cast(Worker, Decodes())],
        listen=lambda seconds: coming.pop() if coming else None,
        wake=lambda: None,
        send=sent.append,
        staging=HostStaging([], cast(SlotMemory, None)),
        owners=Owners(),
    )
    driver._serve_thread()
    told = EndedReader().feed(b"".join(sent))
    assert [(one.request, getattr(one, "tokens", 0)) for one in told if one.request == 3] == [(3, 1), (3, 2), (3, 0)]
    assert sorted(one.request for one in told if isinstance(one, Ended)) == [2, 3, 9]
    assert not driver._tokens


NODES = (Node("gate", ("gate",), (1.0,)), Node("cars", ("gate", "cars"), (0.5, 1.0), (0,), ((0,),), guarded=True))
TRAFFIC = ModelSpec("traffic", "1", (VECTOR,), (SCORES,), 2, 4, steps=tuple(StepSpec(n.name, n.models) for n in NODES))
QUERIED = SchedulerConfig((served("gate"), served("cars")), queries=(Query(TRAFFIC, NODES),), slots=4)
ROWS = lay_out(["gate", "cars"], QUERIED.queries, QUERIED.slots)


class Copies:
    """Copies the input of `traffic` to each of its steps; the second runs where the first number is above 0."""

    def __init__(self, memory: SlotMemory) -> None:
        self._slots = memory.by_name

    def map(self, action: Map) -> None:
        if action.node < len(NODES):
            option = action.chosen[action.node]
            for slot in action.slots:
                row = ROWS.row("traffic", action.node, option, slot)
                rows = self._slots[NODES[action.node].models[option]].inputs[0]
                rows[row] = self._slots["traffic"].inputs[0][slot]

    def branch(self, action: Branch) -> tuple[tuple[bool, ...], ...]:
        inputs = self._slots["traffic"].inputs[0]
        return tuple([(bool(inputs[slot, 0] > 0),) * len(action.nodes) for slot in action.slots])


class Deaf(HostStaging):
    """Fails whoever tells it anything."""

    def arrived(self, event: Arrived) -> None:
        raise AssertionError(f"told of {event}")

    def ended(self, request: int) -> None:
        raise AssertionError(f"told that {request} has ended")


@pytest.mark.parametrize("on_device", [True, False])
def test_the_inputs_of_steps_are_on_their_device_as_they_run_and_their_rows_are_free_at_the_end(
    on_device: bool,
) -> None:
    specs = [*(model.spec for model in QUERIED.models), TRAFFIC]
    memory = memory_of(*specs, rows=ROWS.total)
    inputs = memory.by_name["traffic"].inputs[0]
    inputs[:, 0] = 1.0, -1.0, 2.0, -2.0
    staging = (
        DeviceStaging(["gate", "cars"], memory, torch.device("cpu")) if on_device else Deaf(["gate", "cars"], memory)
    )
    seen = Counter[float]()

    class Sees(Idle):
        def run(self, action: Run) -> StageDone:
            if action.stage == 0:
                (rows,) = staging.stream().inputs(action)
                steps_before = {one - 1 for one in action.requests if one % 3 == 0 and one < 10**6}
                assert not isinstance(staging, DeviceStaging) or staging._staged.keys().isdisjoint(steps_before)
                seen.update(rows[:, 0].tolist())
            return StageDone(action.worker)

    rounds = 50  # many more queries than there are rows
    coming: list[list[Event]] = []
    for number in range(rounds):
        requests = [1 + 12 * number + 3 * slot for slot in range(4)]
        coming.append([Arrived("traffic", 1e9, (one,), (slot,)) for slot, one in enumerate(requests)])
        coming[-1].append(Cancelled(requests[2]))  # a step of it may be mapped and never begins
        coming[-1].append(Arrived("cars", 1e9, (10**6 + number,), (0,)))
    driver = Driver(
        QUERIED,
        [cast(Worker, Sees())],
        listen=lambda seconds: coming.pop() if coming else None,
        wake=lambda: None,
        send=lambda data: None,
        staging=staging,
        owners=memory.owners,
        mappings=cast(Mappings, Copies(memory)),
    )
    with torch.inference_mode():
        driver._serve_thread()
    assert driver._failure is None
    assert seen[1.0] == 2 * rounds == 2 * seen[-1.0]
    if isinstance(staging, DeviceStaging):
        assert not staging._staged
        assert not any(pool.held for pool in staging._pools.values())
