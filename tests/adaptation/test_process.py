"""The service without a process of its own: what it hands on, what runs beside what, and how it gives way."""

import hashlib
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from latebind.adaptation.adapter import Compared, Sampled
from latebind.adaptation.controller import BUILT, FULL_DEPTH, Decision, Retrain, Use, Version
from latebind.adaptation.messages import (
    AdaptationOrder,
    Answered,
    Draw,
    FromService,
    Reader,
    ToService,
    UseVersion,
    packed,
)
from latebind.adaptation.process import YIELD_SECONDS, AdaptationService, yielding_often
from latebind.domain.config import AdaptationConfig
from tests.digits import Built


@pytest.fixture
def service(built: Built, tmp_path: Path) -> Iterator[AdaptationService]:
    """A service that leads."""
    config = AdaptationConfig(on=True, folder=str(tmp_path))
    order = AdaptationOrder((str(built.directory.path),), config, threads=1, backend=None, cores=())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found = AdaptationService(order, theirs, Reader[ToService](msgspec.msgpack.Decoder(ToService)))
        found._lead(found._lanes[0])
        yield found
        found._lanes[0].lead.release()


def test_a_lesson_hands_on_what_it_made_for_the_classes_that_were_heard(
    service: AdaptationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lane,) = service._lanes
    made = lane.adapter.learn(dict.fromkeys(range(10), 0.1), "there is more to learn from", heard=2_000)
    assert made is not None
    faster = replace(made, seconds=tuple(seconds / 100 for seconds in made.seconds), wrong=(0.0,) * 10)

    def learn(mix: dict[int, float], reason: str, *, heard: int) -> Version:
        assert heard == lane.adapter.controller.heard == 3
        return faster

    monkeypatch.setattr(lane.adapter, "learn", learn)
    for answer in (4, 4, 7):
        lane.adapter.controller.answered(answer)
    service._teach(lane, Retrain("there is more to learn from"))
    assert lane.adapter.controller.wanted == lane.adapter.versions.current() == made.name


@pytest.fixture
def full(service: AdaptationService) -> Iterator[Path]:
    """The folder of a model, in which nothing can be made."""
    folder = service._lanes[0].adapter.folder
    aside = folder.rename(folder.with_name("aside"))
    folder.write_text("a folder cannot be made here")
    yield folder
    folder.unlink()
    aside.rename(folder)


@pytest.mark.usefixtures("full")
def test_exits_that_are_to_stop_stop_where_the_disk_is_full(
    service: AdaptationService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (lane,), told = service._lanes, list[FromService]()
    monkeypatch.setattr(service, "_tell", told.append)
    service._use(lane, Use(FULL_DEPTH, "fidelity fell"))
    assert told == [UseVersion(lane.name, FULL_DEPTH, "fidelity fell")]
    assert lane.seen == BUILT  # as it is written: nobody has chosen anything else
    assert "other servers are not told" in caplog.text


def test_answers_are_compared_while_a_lesson_runs(service: AdaptationService, monkeypatch: pytest.MonkeyPatch) -> None:
    (lane,) = service._lanes
    teaching, compared, meanwhile = threading.Event(), threading.Event(), list[bool]()

    def learn(*_: object, **__: object) -> None:
        teaching.set()
        meanwhile.append(compared.wait(60.0))

    def see(batch: Sequence[Sampled]) -> list[Compared]:
        compared.set()
        return [Compared(True, False, one.at, one.used) for one in batch]

    told: list[int] = []

    def hear(same: bool, *, at: int, strange: bool, used: str) -> list[Decision]:
        told.append(at)
        return []

    monkeypatch.setattr(lane.adapter.controller, "compared", hear)
    for name, replaced in (("learn", learn), ("see", see)):
        monkeypatch.setattr(lane.adapter, name, replaced)
    lane.lesson = Retrain("there is more to learn from")
    for root in (service._learn_on, service._compare_on):
        threading.Thread(target=root, daemon=True).start()
    assert teaching.wait(60.0)
    with service._work:
        assert lane.wait(Sampled(b"", 4, 0, Draw(shows=True), at=7))
        service._work.notify_all()
    deadline = time.monotonic() + 60.0
    while not (meanwhile and told):
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
    assert (meanwhile, told) == ([True], [7])


TIMERS = Path("/proc/self/timers")


@pytest.mark.skipif(not TIMERS.exists(), reason="needs a system that lists timers")
def test_what_takes_long_yields_its_core_often(service: AdaptationService, monkeypatch: pytest.MonkeyPatch) -> None:
    (lane,) = service._lanes
    own, ticking = f"/tid.{threading.get_native_id()}\n", dict[str, bool]()

    def see(batch: Sequence[Sampled]) -> list[Compared]:
        ticking["see"] = own in TIMERS.read_text()
        return []

    def learn(*_: object, **__: object) -> None:
        ticking["learn"] = own in TIMERS.read_text()

    for name, replaced in (("see", see), ("learn", learn)):
        monkeypatch.setattr(lane.adapter, name, replaced)
    service._see(lane, [])
    service._teach(lane, Retrain("there is more to learn from"))
    assert ticking == {"see": True, "learn": True}
    assert own not in TIMERS.read_text()


def test_samples_that_show_are_looked_at_before_those_that_teach(service: AdaptationService) -> None:
    (lane,) = service._lanes
    for number, shows in enumerate((False, True, False, True)):
        lane.wait(Sampled(b"", 4, 0, Draw(shows=shows), at=number))
    assert [[one.at for one in lane.batch()] for _ in range(3)] == [[1, 3], [0, 2], []]


def test_a_sample_knows_which_answer_it_is(service: AdaptationService) -> None:
    (lane,) = service._lanes
    told = [Answered(0, 4, 0, 0, draw) for draw in (None, Draw(shows=True), None, Draw(shows=True))]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        service._frontend = theirs
        ours.sendall(b"".join(map(packed, told)))
        while lane.adapter.controller.total < len(told):
            assert service._listen()
    assert [one.at for one in lane.to_compare] == [2, 4]


COMPUTED_SECONDS = 0.3
BUSY = "while True: pass"


@pytest.fixture
def core() -> Iterator[int]:
    """A core on which another process computes without end."""
    number = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", BUSY]) as other:
        os.sched_setaffinity(other.pid, {number})
        yield number
        other.kill()


def switches_a_second(core: int, *, wanted: bool) -> float:
    """Return how often a thread beside that process is switched, in a second that it computes for itself."""
    found = []

    def compute() -> None:
        os.sched_setaffinity(0, {core})
        data = bytes(1 << 22)
        with yielding_often(wanted):
            before = resource.getrusage(resource.RUSAGE_THREAD)
            begun = time.thread_time()
            while time.thread_time() - begun < COMPUTED_SECONDS:
                hashlib.sha256(data)  # takes milliseconds, in which Python runs nothing
            after = resource.getrusage(resource.RUSAGE_THREAD)
            took = time.thread_time() - begun
        switched = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw
        found.append(switched / took)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.skipif(sys.platform != "linux", reason="needs timers of Linux")
def test_a_thread_yields_within_long_calls(core: int) -> None:
    often = switches_a_second(core, wanted=True)
    assert often > 0.2 / YIELD_SECONDS
    assert often > 2 * switches_a_second(core, wanted=False)  # on a crowded machine it is switched often anyway
