"""The service without a process of its own: what it hands on, what runs beside what, and how it gives way."""

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from pathlib import Path

import pytest

from latebind.adaptation.adapter import Compared, Sampled
from latebind.adaptation.controller import BUILT, FULL_DEPTH, Decision, Retrain, Use, Version
from latebind.adaptation.messages import (
    AdaptationOrder,
    Answered,
    Draw,
    FromService,
    UseVersion,
    encoded,
)
from latebind.adaptation.process import AdaptationService
from latebind.domain.config import AdaptationConfig
from tests.digits import Built


@pytest.fixture
def service(built: Built, tmp_path: Path) -> Iterator[AdaptationService]:
    """A service that leads."""
    config = AdaptationConfig(on=True, folder=str(tmp_path))
    order = AdaptationOrder((str(built.directory.path),), config, threads=1, backend=None, cores=())
    ours, theirs = Pipe()
    with ours, theirs:
        found = AdaptationService(order, theirs)
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
        return [Compared(True, False, at, BUILT) for at, _ in batch]

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
        lane.wait((7, Answered(0, 4, 0, 0, Draw(shows=True))))
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
        lane.wait((number, Answered(0, 4, 0, 0, Draw(shows=shows))))
    assert [[at for at, _ in lane.batch()] for _ in range(3)] == [[1, 3], [0, 2], []]


def test_a_sample_knows_which_answer_it_is(service: AdaptationService) -> None:
    (lane,) = service._lanes
    told = [Answered(0, 4, 0, 0, draw) for draw in (None, Draw(shows=True), None, Draw(shows=True))]
    ours, theirs = Pipe()
    with ours, theirs:
        service._frontend = theirs
        for one in told:
            ours.send_bytes(encoded(one))
        while lane.adapter.controller.total < len(told):
            assert service._listen()
    assert [at for at, _ in lane.to_compare] == [2, 4]
