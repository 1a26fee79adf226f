"""The driver with a model that computes nothing, one thread and no process."""

from collections.abc import Callable
from io import BytesIO
from typing import TypeVar, cast

import numpy as np

from latebind.domain.actions import Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog, read_log
from latebind.domain.events import Arrived, Event, Exited, StageDone
from latebind.engine.driver import MOST_UNCOUNTED, Driver
from latebind.engine.slots import SlotMemory
from latebind.engine.staging import HostStaging
from latebind.engine.worker import Worker
from tests.models import served

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


def seen(look: Callable[[Driver], Seen], *, stages: int, requests: int = 1) -> list[Seen]:
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
        log=EventLog(file, config),
    )
    driver._serve_thread()
    file.seek(0)
    entries = [entry for entry in read_log(file)[1] if isinstance(entry.event, Arrived)]
    assert len({entry.now for entry in entries}) == 1
    assert [len(entry.actions) for entry in entries] == [0, 0, 1]
