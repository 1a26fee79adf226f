"""The live engine without a door: rows that hit leave their call first, and everything is answered once."""

import shutil

import numpy as np
import pytest

from latebind.bench import engine
from latebind.bench.exits import Setting
from latebind.learned.build import recalibrate
from latebind.repository.directory import ModelDirectory
from tests.digits import Built

ROWS = 96


@pytest.fixture(scope="module")
def report(built: Built, tmp_path_factory: pytest.TempPathFactory) -> engine.EngineReport:
    """At a target that lets some leave and others not."""
    repository = tmp_path_factory.mktemp("strict")
    shutil.copytree(built.directory.path, repository / "digits" / "1")
    recalibrate(ModelDirectory.open(repository / "digits" / "1"), built.calibrate, fidelity=0.98, confidence=0.9)
    return engine.run(
        repository,
        "digits",
        {"image": built.unseen[:ROWS].numpy()},
        setting=Setting(backend="eager"),
        batches=(4,),
    )


def test_every_row_is_asked_once_of_both_engines(report: engine.EngineReport) -> None:
    asked = report.asked[4]
    assert len(asked.seconds("on")) == len(asked.seconds("off")) == ROWS
    assert len(asked.calls["on"]) == ROWS // 4
    assert np.all(asked.seconds("on") > 0)
    assert asked.fidelity >= 0.93
    assert [row["rows a call"] for row in report.rows()] == [4]


def test_rows_that_hit_leave_their_call_before_the_others(report: engine.EngineReport) -> None:
    off, on = (report.asked[4].seconds(side).reshape(-1, 4) for side in ("off", "on"))
    assert np.all(off.max(axis=1) == off.min(axis=1))
    mixed = on.max(axis=1) > on.min(axis=1)
    assert 0 < mixed.sum() < len(on)


def test_throughput_is_told_for_the_largest_batch(report: engine.EngineReport) -> None:
    assert [row["largest batch"] for row in report.throughput_rows()] == [4]
    assert report.throughput().value > 0
