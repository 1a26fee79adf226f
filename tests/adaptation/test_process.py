"""The service without a process of its own: what it hands on, what runs beside what, and how it gives way."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from latebind.adaptation.adapter import Sampled
from latebind.adaptation.controller import BUILT, FULL_DEPTH, Decision, Retrain, Use, Version
from latebind.adaptation.messages import AdaptationOrder, Answered, Draw, FromService, UseVersion, encoded
from latebind.adaptation.process import AdaptationService
from latebind.domain.config import AdaptationConfig
from tests.digits import Built

MORE = Retrain("there is more to learn from")


@pytest.fixture
def ends() -> Iterator[tuple[Connection, Connection]]:
    """The frontend's end and the service's."""
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def service(built: Built, tmp_path: Path, ends: tuple[Connection, Connection]) -> Iterator[AdaptationService]:
    """A service that leads."""
    config = AdaptationConfig(on=True, folder=str(tmp_path))
    order = AdaptationOrder((str(built.directory.path),), config, threads=1, backend=None, cores=())
    found = AdaptationService(order, ends[1])
    found._lead(found._models[0])
    yield found
    found._models[0].lead.release()


def go_on(service: AdaptationService, done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60.0
    while not done():
        assert time.monotonic() < deadline, "it did not happen"
        assert service._listen()
        service._compare()
        service._learn()


def test_a_version_that_a_lesson_made_for_the_classes_that_come_is_used(
    service: AdaptationService, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model,) = service._models
    made = model.lesson(MORE)()
    assert made is not None
    faster = replace(made, seconds=tuple(seconds / 100 for seconds in made.seconds), wrong=(0.0,) * 10)
    monkeypatch.setattr(model, "lesson", lambda asked: lambda: faster)
    for answer in (4, 4, 7):
        model.controller.answered(answer)
    model.due = MORE
    go_on(service, lambda: model.retrained > 0)
    assert model.controller.wanted == model.versions.current() == made.name


@pytest.fixture
def full(service: AdaptationService) -> Iterator[Path]:
    """The folder of a model, in which nothing can be made."""
    folder = service._models[0].folder
    aside = folder.rename(folder.with_name("aside"))
    folder.write_text("a folder cannot be made here")
    yield folder
    folder.unlink()
    aside.rename(folder)


@pytest.mark.usefixtures("full")
def test_exits_that_are_to_stop_stop_where_the_disk_is_full(
    service: AdaptationService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (model,), told = service._models, list[FromService]()
    monkeypatch.setattr(service, "_send", told.append)
    service._use(model, Use(FULL_DEPTH, "fidelity fell"))
    assert told == [UseVersion("digits", FULL_DEPTH, "fidelity fell")]
    assert model.seen == BUILT  # as it is written: nobody has chosen anything else
    assert "other servers cannot be switched" in caplog.text


def test_answers_are_compared_while_a_lesson_runs_and_after_one_that_failed_another_may_come(
    service: AdaptationService,
    ends: tuple[Connection, Connection],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (model,), compared, seen = service._models, threading.Event(), list[int]()

    def learn() -> Version | None:
        assert compared.wait(60.0)
        raise ValueError("no rows")

    def see(batch: Sequence[Sampled]) -> list[Decision]:
        seen.extend(at for at, _ in batch)
        compared.set()
        return []

    monkeypatch.setattr(model, "see", see)
    monkeypatch.setattr(model, "lesson", lambda asked: learn)
    model.due = MORE
    service._learn()
    ends[0].send_bytes(encoded(Answered(0, 4, 0)))
    ends[0].send_bytes(encoded(Answered(0, 4, 0, Draw(shows=True))))
    go_on(service, lambda: not service._teaching)
    assert seen == [2]
    assert "adapting digits failed: no rows" in caplog.text
    monkeypatch.setattr(model, "lesson", lambda asked: lambda: None)
    model.due = MORE
    go_on(service, lambda: model.refused == 1)


TIMERS = Path("/proc/self/timers")


@pytest.mark.skipif(not TIMERS.exists(), reason="needs a system that lists timers")
def test_what_takes_long_yields_its_core_often(service: AdaptationService, monkeypatch: pytest.MonkeyPatch) -> None:
    (model,), ticking = service._models, dict[str, bool]()

    def own() -> bool:
        return f"/tid.{threading.get_native_id()}\n" in TIMERS.read_text()

    def see(batch: Sequence[Sampled]) -> list[Decision]:
        ticking["see"] = own()
        return []

    def learn() -> Version | None:
        ticking["learn"] = own()
        return None

    monkeypatch.setattr(model, "see", see)
    monkeypatch.setattr(model, "lesson", lambda asked: learn)
    model.take(Answered(0, 4, 0, Draw(shows=True)))
    model.due = MORE
    go_on(service, lambda: model.retrained > 0)
    assert ticking == {"see": True, "learn": True}
    assert not own()
