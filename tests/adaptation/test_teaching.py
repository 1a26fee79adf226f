"""What the service hands on from adapter to controller when a lesson has ended, without a process of its own."""

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from latebind.adaptation.adapter import Compared, Sampled
from latebind.adaptation.controller import BUILT, FULL_DEPTH, Decision, Retrain, Use, Version
from latebind.adaptation.messages import AdaptationOrder, Answered, FromService, UseVersion, pack_answered, row_bytes
from latebind.adaptation.process import AdaptationService
from latebind.adaptation.sampling import Draw
from latebind.domain.config import AdaptationConfig
from latebind.domain.errors import NotFound
from tests.digits import Built


@pytest.fixture
def service(built: Built, tmp_path: Path) -> Iterator[AdaptationService]:
    """A service that leads."""
    config = AdaptationConfig(on=True, folder=str(tmp_path))
    order = AdaptationOrder((str(built.directory.path),), config, threads=1, backend=None, cores=())
    with ExitStack() as stack:
        (_, messages), (_, control) = [
            [stack.enter_context(end) for end in pair] for pair in (socket.socketpair(), socket.socketpair())
        ]
        found = AdaptationService(order, messages, control)
        found._lead(found._lanes[0])
        yield found
        found._lanes[0].lease.release()


@pytest.mark.parametrize("stands", [True, False])
def test_a_version_that_the_lesson_showed_anew_is_not_replaced_by_a_slower_one(
    service: AdaptationService, stands: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lane,) = service._lanes
    used = lane.adapter.version(BUILT)
    assert used is not None
    made = lane.adapter.learn(dict.fromkeys(range(10), 0.1), "there is more to learn from", heard=2_000)
    assert made is not None
    slower = replace(made, seconds=tuple(2 * seconds for seconds in used.seconds), rows=used.rows + 1)

    def learn(mix: dict[int, float], reason: str, *, heard: int) -> Version:
        assert heard == lane.adapter.controller.heard == 3
        lane.adapter.stands = stands
        return slower

    monkeypatch.setattr(lane.adapter, "learn", learn)
    for answer in (4, 4, 7):
        lane.adapter.controller.answered(answer)
    service._teach(lane, Retrain("there is more to learn from"))
    assert lane.adapter.controller.wanted == lane.adapter.versions.current() == (BUILT if stands else made.name)


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


@pytest.mark.usefixtures("full")
def test_a_service_ends_as_it_should_where_the_disk_is_full(
    service: AdaptationService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(service, "_listen", lambda: False)
    monkeypatch.setattr(service._lanes[0].adapter, "rehearse", lambda: None)
    service.run()
    assert "not kept" in caplog.text


def test_a_service_that_fails_ends(service: AdaptationService, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> bool:
        raise NotFound("a version that somebody has deleted")

    monkeypatch.setattr(service, "_listen", fail)
    monkeypatch.setattr(service._lanes[0].adapter, "rehearse", lambda: None)
    with pytest.raises(NotFound):
        service.run()
    assert "learning" not in [thread.name for thread in threading.enumerate()]


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
    for name, replaced in (("rehearse", lambda: None), ("learn", learn), ("see", see)):
        monkeypatch.setattr(lane.adapter, name, replaced)
    lane.lesson = Retrain("there is more to learn from")
    threads = [threading.Thread(target=root) for root in (service._learn_on, service._compare_on)]
    for thread in threads:
        thread.start()
    assert teaching.wait(60.0)
    with service._work:
        assert lane.wait(Sampled(b"", 4, 0, Draw(shows=True), at=7))
        service._work.notify_all()
    assert compared.wait(60.0)
    service._end(threads)
    assert meanwhile == [True]
    assert told == [7]


TIMERS = Path("/proc/self/timers")


@pytest.mark.skipif(not TIMERS.exists(), reason="needs a system that lists timers")
def test_what_takes_long_yields_its_core_often(service: AdaptationService, monkeypatch: pytest.MonkeyPatch) -> None:
    (lane,) = service._lanes
    own, ticking = f"/tid.{threading.get_native_id()}\n", dict[str, bool]()

    def rehearse() -> None:
        ticking["rehearse"] = own in TIMERS.read_text()
        service._closed = True

    def see(batch: Sequence[Sampled]) -> list[Compared]:
        ticking["see"] = own in TIMERS.read_text()
        return []

    def learn(*_: object, **__: object) -> None:
        ticking["learn"] = own in TIMERS.read_text()

    for name, replaced in (("rehearse", rehearse), ("see", see), ("learn", learn)):
        monkeypatch.setattr(lane.adapter, name, replaced)
    service._see(lane, [])
    service._teach(lane, Retrain("there is more to learn from"))
    service._learn_on()
    assert ticking == {"see": True, "learn": True, "rehearse": True}
    assert own not in TIMERS.read_text()


def test_samples_that_show_are_looked_at_before_those_that_teach(service: AdaptationService) -> None:
    (lane,) = service._lanes
    for number, shows in enumerate((False, True, False, True)):
        lane.wait(Sampled(b"", 4, 0, Draw(shows=shows), at=number))
    assert [[one.at for one in lane.batch()] for _ in range(3)] == [[1, 3], [0, 2], []]


def test_a_sample_knows_which_answer_it_is(service: AdaptationService) -> None:
    (lane,) = service._lanes
    row = bytes(row_bytes(lane.adapter.spec))
    told = [
        Answered(0, 4, 0, 0, draw, row if draw else b"") for draw in (None, Draw(shows=True), None, Draw(shows=True))
    ]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        service._messages = theirs
        ours.sendall(b"".join(map(pack_answered, told)))
        while lane.adapter.controller.total < len(told):
            assert service._listen()
    assert [one.at for one in lane.to_compare] == [2, 4]
