"""The live engine without a door: rows that hit leave their call first, and everything is answered once."""

import shutil

import numpy as np
import pytest

from latebind.bench.subject import Setting, Subject
from latebind.learned.build import recalibrate
from latebind.repository.directory import ModelDirectory
from latebind.server.gateway import Answer
from research.gati import engine
from tests.building import on_one_core
from tests.digits import Built

ROWS, CALL = 100, 4  # the last block of rows is not full


@pytest.fixture(scope="module")
def report(built: Built, tmp_path_factory: pytest.TempPathFactory) -> engine.EngineReport:
    """At a target that lets some leave and others not."""
    repository = tmp_path_factory.mktemp("strict")
    shutil.copytree(built.directory.path, repository / "digits" / "1")
    with on_one_core():
        recalibrate(ModelDirectory.open(repository / "digits" / "1"), built.calibrate, fidelity=0.98, confidence=0.9)
    return engine.run(
        Subject(repository, "digits", {"image": built.unseen[:ROWS].numpy()}),
        setting=Setting(backend="eager"),
        batches=(CALL,),
    )


def test_every_row_is_asked_once_of_both_engines(report: engine.EngineReport) -> None:
    asked = report.asked[CALL]
    assert len(asked.seconds("on")) == len(asked.seconds("off")) == ROWS
    assert len(asked.calls["on"]) == len(asked.calls["off"]) == ROWS // CALL
    assert np.all(asked.seconds("on") > 0)
    assert asked.fidelity >= 0.93
    assert [row["rows a call"] for row in report.rows()] == [CALL]


def test_rows_that_hit_leave_their_call_before_the_others(report: engine.EngineReport) -> None:
    off, on = (report.asked[CALL].seconds(side).reshape(-1, CALL) for side in ("off", "on"))
    assert np.all(off.max(axis=1) == off.min(axis=1))
    mixed = on.max(axis=1) > on.min(axis=1)
    assert 0 < mixed.sum() < len(on)


def test_throughput_is_told_for_the_largest_batch(report: engine.EngineReport) -> None:
    assert [row["largest batch"] for row in report.throughput_rows()] == [CALL]
    assert report.throughput().value > 0


def answer(*, classes: list[int], waited: list[float], ran: list[float]) -> Answer:
    return Answer({"output": np.eye(3)[classes]}, (0,) * len(classes), tuple(waited), tuple(ran))


def test_a_row_takes_what_it_waited_and_ran_and_gains_are_of_without_over_with() -> None:
    asked = engine.Asked()
    asked.take("off", answer(classes=[0, 1, 2, 0], waited=[2.0] * 4, ran=[4.0] * 4), 7.0)
    asked.take("on", answer(classes=[0, 1, 2, 1], waited=[2.0] * 4, ran=[0.5, 0.5, 1.5, 1.5]), 4.0)
    assert asked.seconds("off").tolist() == [6.0] * 4
    assert asked.seconds("on").tolist() == [2.5, 2.5, 3.5, 3.5]
    assert asked.gain(0).value == 2.0
    assert asked.tail == pytest.approx(3.5 / 6.0)
    assert asked.fidelity == 0.75


def test_each_side_is_given_its_better_policy() -> None:
    phases = {1: {"off": [0.2, 0.4], "on": [0.1, 0.1]}, 8: {"off": [0.1, 0.3], "on": [0.2, 0.2]}}
    report = engine.EngineReport("digits", 0, {}, phases)
    assert report.throughput().value == pytest.approx(2.0)
    assert [row["off per s"] for row in report.throughput_rows()] == ["3", "5"]
    assert [str(row["times more"])[:5] for row in report.throughput_rows()] == ["3.000", "1.000"]
