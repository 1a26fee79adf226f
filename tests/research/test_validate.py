"""Validation: what a log tells, what is simulated of it, and what stands in the tables."""

from io import BytesIO
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest

from latebind.bench.subject import Setting
from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Arrived, StageDone
from latebind.program.metadata import read_spec_and_costs
from latebind.repository.directory import ModelDirectory
from latebind.scheduler import Scheduler
from latebind.simulation.hardware import Agenda, Work
from research.live import Call, Rows
from research.validate.command import Compared, Plan, made_up, row, visited
from research.validate.simulated import Launch, Log, Measured, Seen, simulated
from tests.building import made_once
from tests.engine.test_any_size import build_all
from tests.models import served
from tests.research.conftest import quiet, subject_of

CONFIG = SchedulerConfig((served("net", stages=1, seconds=0.002, per_row=0.001),), 1, PolicyConfig("graph"))
WAY = 0.001  # seconds of a message, there and back


@pytest.fixture
def played(tmp_path: Path) -> tuple[Log, list[list[Call]]]:
    """Stretches to an engine with messages of a millisecond, whose launches take 3 ms; in the block they take 9."""
    file, scheduler, stretches, number = BytesIO(), Scheduler(CONFIG), list[list[Call]](), 0
    log = EventLog(file, CONFIG)
    for stretch in range(3):
        calls, took = [], 0.009 if stretch == 1 else 0.003
        for at in [10.0 + stretch + 0.05 * place for place in range(10)]:
            number += 1
            for event, now in (
                (Arrived("net", at + 1.0, (number,), (0,)), at + WAY),
                (StageDone(0), at + WAY + took),
            ):
                log.write(now, event, scheduler.handle(event, now))
            calls.append(Call("net", at, at, at + took + 2 * WAY, 1.0, 0, 0.0, took))
        stretches.append(calls)
    (tmp_path / "log.jsonl").write_bytes(file.getvalue())
    return Log.read(tmp_path / "log.jsonl"), stretches


def test_a_log_tells_what_launches_and_messages_took(played: tuple[Log, list[list[Call]]]) -> None:
    log, stretches = played
    seen = log.seen(stretches[2:])
    assert [one.seconds for one in seen.launches["net", 0][1]] == pytest.approx([0.003] * 10)
    assert seen.there == pytest.approx([WAY] * 10)
    assert seen.back == pytest.approx([WAY] * 10)


def test_a_block_is_simulated_with_what_calibrations_took_and_not_with_its_own_launches(
    played: tuple[Log, list[list[Call]]],
) -> None:
    log, stretches = played
    _, block, _ = simulated(log, stretches, 0)
    assert block.tolist() == pytest.approx([0.005] * 10)


def test_a_launch_takes_what_those_took_that_are_about_as_long() -> None:
    launches = [Launch(0.0, ("net", 0), 2, length * 1e-3 + 5e-3, length * 1e-3) for length in range(1, 21)]
    seen = Seen({("net", 0): {2: launches}}, [0.0], [0.0])
    agenda, ended = Agenda(), list[float]()
    hardware = Measured(agenda, seen=seen, random=Random(0))
    for _ in range(20):
        hardware.run(Work(0, "net", 0, 2, 18e-3), 0.0, [(0.0, ended.append)])
    agenda.run_until()
    assert all(22e-3 < at < 24.5e-3 for at in ended), "5 ms more than 18, and not 6 times as long as one of 1 ms"


def test_ratios_are_medians_of_rounds_and_count_who_was_answered() -> None:
    live = [np.array([0.01, 0.03, inf])] * 3
    found = row(Compared("net", "graph", live, [scale * live[0] for scale in (1.05, 1.0, 3.0)]), 0)
    assert str(found["mean, times"]).startswith("1.050 ")
    assert found["not answered"] == "33.3% / 33.3%"
    assert found["mean ms"] == "20.00 / 33.67"
    assert str(found["answered, times"]).startswith("1.000 ")
    nobody = row(Compared("net", "graph", live, [np.array([inf])] * 3), 0)
    assert (nobody["mean, times"], nobody["mean ms"]) == ("", "20.00 / -")


def test_rows_of_any_size_are_simulated_at_their_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    path, plan = made_once(tmp_path_factory, "any-size", build_all), Plan(load=0.3, rounds=1, blocks=1, deadline=1000.0)
    spec = read_spec_and_costs(ModelDirectory.open(path / "pictures" / "1"))[0]
    rows = made_up(spec, "2x3,12x9,4x3", Random(0))
    shapes = {rows.given(row, spec)["image"].shape for row in range(3)}
    assert shapes == {(1, 2, 2, 3), (1, 2, 12, 9), (1, 2, 4, 3)}
    (found,) = visited({"pictures": path / "pictures" / "1"}, ["late"], {"pictures": rows}, plan, Setting(), quiet)
    ((live,), (would,)) = found.live, found.simulated
    assert len(live) == len(would) > 0
    assert np.isfinite(would).all()


@pytest.mark.parametrize("model", ["chain", "backwards"])
def test_live_and_simulated_hold_the_same_requests(models: Path, model: str) -> None:
    asked, plan = subject_of(models, model), Plan(load=0.3, rounds=1, blocks=1, deadline=1000.0)
    (found,) = visited({model: asked.path}, ["late"], {model: Rows(asked.arrays)}, plan, Setting(), quiet)
    ((live,), (would,)) = found.live, found.simulated
    assert len(live) == len(would) > 0
    assert np.isfinite(live).all()
    assert np.isfinite(would).all()
