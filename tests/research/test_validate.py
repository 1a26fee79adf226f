"""Validation: what a log tells, what is simulated of it, and what stands in the tables."""

from io import BytesIO
from math import inf
from pathlib import Path
from random import Random

import numpy as np
import pytest

from latebind.bench.client import during, rising
from latebind.bench.subject import Setting
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Arrived, StageDone
from latebind.domain.model import ModelSpec, StageKind
from latebind.queries.scheduler import AnyScheduler
from latebind.scheduler import Scheduler
from research.hardware.measured import Launch, Loading, Pace, Seen, Usual
from research.live import Rows
from research.mcache.zoo import Weighed, Zoo
from research.requests import Sent, Visit
from research.validate import live
from research.validate.logged import Counts, Logged, check_can_replay
from research.validate.report import Load, Round, rows, within
from research.validate.simulated import Paces, Played, arrivals, pace_of, simulated
from tests.models import served
from tests.research.conftest import quiet, subject_of

NET = served("net", stages=1, seconds=0.002, per_row=0.001)
CONFIG = SchedulerConfig((NET,), 1, PolicyConfig("graph"))
WAY = 0.001  # seconds of a message, there and back


def visit_of(times: list[list[float]], scheduler: Scheduler, log: EventLog, first: int) -> Visit:
    """Play stretches as an engine with messages of a millisecond would, one request at a time; none waits."""
    stretches = []
    for stretch in times:
        sent = []
        for at in stretch:
            for event, now in (
                (Arrived("net", at + 1.0, (first,), (0,)), at + WAY),
                (StageDone(0), at + WAY + 0.003),
            ):
                log.write(now, event, scheduler.handle(event, now))
            sent.append(Sent("net", at, at + 0.003 + 2 * WAY, 1.0, 0))
            first += 1
        stretches.append(sent)
    return Visit(stretches[::2], stretches[1::2])


@pytest.fixture
def played(tmp_path: Path) -> Played:
    file, scheduler = BytesIO(), Scheduler(CONFIG)
    log = EventLog(file, CONFIG)
    times = [[10.0 + stretch + 0.05 * number for number in range(10)] for stretch in range(3)]
    visit = visit_of(times, scheduler, log, 1)
    (tmp_path / "log.jsonl").write_bytes(file.getvalue())
    return Played("net", "graph", [visit], Logged.read(tmp_path / "log.jsonl"))


def test_a_log_tells_what_launches_and_messages_took(played: Played) -> None:
    seen = played.log.seen(played.visits[0].calibrations[1])
    assert seen.length == pytest.approx(0.455)
    assert [one.seconds for _, one in seen.launches] == pytest.approx([0.003] * 10)
    assert [at for at, _ in seen.launches][:2] == pytest.approx([0.001, 0.051])
    assert all(one.fresh for _, one in seen.launches)
    assert [hop.seconds for _, hop in seen.idle] == pytest.approx([WAY] * 10)
    assert [hop.seconds for _, hop in seen.back] == pytest.approx([WAY] * 10)
    assert seen.busy == ()


def test_what_is_simulated_takes_what_calibrations_took(played: Played) -> None:
    ((first, again),) = simulated(played, 0, times=2)
    for run in (first, again):
        (block,) = run.blocks
        assert block.tolist() == pytest.approx([0.005] * 10)


def test_what_ran_in_blocks_does_not_tell_in_what_is_simulated(played: Played) -> None:
    (visit,) = played.visits
    begun = visit.blocks[0][0].sent
    slower = tuple(
        (at, one if not begun <= at < begun + 0.9 else type(one)("net", 0, 1, 0.03, 0.002))
        for at, one in played.log.launches
    )
    other = Logged(played.log.config, slower, (), played.log.heard)
    ((run,),) = simulated(Played("net", "graph", [visit], other), 0, times=1)
    assert run.blocks[0].tolist() == pytest.approx([0.005] * 10)


def test_runs_of_sequences_are_told_at_typical_length_and_arrivals_are_as_long_as_they_were(tmp_path: Path) -> None:
    costs = ModelCosts((Curve((1,), (0.001,)), Curve((1,), (0.002,))), slopes={0: Curve((1,), (0.0001,))})
    kinds = (StageKind.STATIC, StageKind.DECODER)
    spec = ModelSpec("words", "1", NET.spec.inputs, NET.spec.outputs, 2, 4, kinds=kinds)
    config, file = SchedulerConfig((ServedModel(spec, costs),), 1, PolicyConfig("graph", 1)), BytesIO()
    scheduler, log = Scheduler(config), EventLog(file, config)
    for event, now in ((Arrived("words", 9.0, (1,), (0,), inputs=(31,)), 1.0), (StageDone(0), 1.008)):
        log.write(now, event, scheduler.handle(event, now))
    (tmp_path / "log.jsonl").write_bytes(file.getvalue())
    ((_, launch),) = Logged.read(tmp_path / "log.jsonl").launches
    assert launch.seconds == pytest.approx(0.008)
    assert launch.typical == pytest.approx(0.008 * 0.0029 / 0.004)
    (arrival,) = arrivals([Sent("words", 1.0, 2.0, 9.0, 1, inputs=31, outputs=7)], config)
    assert (arrival.time, arrival.inputs, arrival.outputs) == (1.0, 31, 7)


def expected(scheduler: AnyScheduler) -> float:
    assert isinstance(scheduler, Scheduler)
    return scheduler.outlooks(("net",))["net"].whole


def test_the_scheduler_is_as_it_was_when_a_visit_began(played: Played) -> None:
    first, last = played.visits[0].blocks[0][0].sent, played.visits[0].calibrations[1][-1].sent
    found = played.log.schedulers([last, first])
    fresh, early, late = map(expected, (Scheduler(CONFIG), found[first], found[last]))
    assert fresh == 0.002 < early < late == pytest.approx(0.003, rel=0.1)


def test_a_compiled_installation_is_refused_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("research.validate.logged.is_compiled", lambda: True)
    with pytest.raises(ConfigError, match="plain Python"):
        check_can_replay()
    with pytest.raises(ConfigError, match="plain Python"):
        live.loads({}, (), {}, live.Plan(), Setting(), quiet)


def test_launches_are_counted_live_and_simulated(played: Played) -> None:
    ((run,),) = simulated(played, 0, times=1)
    (visit,) = played.visits
    assert played.log.counts(visit.sent) == run.counts == Counts(launches=30, rows=30)
    assert played.log.counts(visit.blocks[0]) == Counts(launches=10, rows=10)


def test_the_pace_changes_evenly_from_one_calibration_to_the_next() -> None:
    paces = Paces((1.0, 3.0), (Pace(1.0, 4.0), Pace(2.0, 2.0)))
    assert [paces.at(time).runs for time in (0.0, 1.0, 2.0, 4.0)] == [1.0, 1.0, 1.5, 2.0]
    assert [paces.at(time).loads for time in (0.0, 1.0, 2.0, 4.0)] == [4.0, 4.0, 3.0, 2.0]


def test_the_pace_is_that_of_the_median_launch_and_load() -> None:
    launches = tuple(
        (0.1 * number, Launch("net", 0, 1, seconds, 0.001)) for number, seconds in enumerate((0.002, 0.004, 0.1))
    )
    loads = ((0.0, Loading(1000, 0.002)), (0.5, Loading(2000, 0.012)), (0.6, Loading(1000, 0.004)))
    rule = {("net", 0, False): Usual(Curve((1,), (0.002,)), (0.001, 0.001))}
    assert pace_of(Seen(1.0, launches, loads=loads), rule, 1e-6) == Pace(runs=2.0, loads=4.0)
    assert pace_of(Seen(1.0), rule, 1e-6) == Pace(1.0, 1.0)


def test_ratios_are_medians_of_rounds_and_count_who_was_answered() -> None:
    rounds = [
        Round(np.array([0.01, 0.03, inf]), [scale * np.array([0.01, 0.03, inf])] * 2) for scale in (1.05, 1.0, 3.0)
    ]
    load = Load("net", "graph", rounds, Counts(30, 60), Counts(40, 60))
    (row,) = rows([load], seed=0)
    assert load.ratio("mean", 0).value == pytest.approx(1.05)
    assert row["not answered"] == "33.3% / 33.3%"
    assert row["mean ms"] == "20.00 / 33.67"
    assert row["launches x rows"] == "30 x 2.00 / 40 x 1.50"
    assert "loads" not in row
    assert row["within 10%, 20%"] == "yes"


@pytest.mark.parametrize(("mean", "tail", "near"), [(1.09, 1.19, True), (1.11, 1.0, False), (0.95, 0.75, False)])
def test_near_is_a_tenth_for_the_mean_and_a_fifth_for_the_tail(mean: float, tail: float, near: bool) -> None:
    live = np.concatenate([np.full(900, 0.01), np.full(100, 0.02)])
    body = mean * live.mean() - 0.1 * tail * 0.02
    other = np.concatenate([np.full(900, body / 0.9), np.full(100, tail * 0.02)])
    assert within(Load("net", "graph", [Round(live, [other])]), 0) is near


def test_rates_of_calibrations_rise_from_less_to_more() -> None:
    times = rising(10.0, 200.0, Random(0))
    assert sum(time < 5.0 for time in times) / 5.0 == pytest.approx(170.0, rel=0.1)
    assert sum(time >= 5.0 for time in times) / 5.0 == pytest.approx(230.0, rel=0.1)
    assert len(during(10.0, 200.0, Random(0))) == pytest.approx(2000, rel=0.1)


def test_stretches_play_a_trace_one_after_another_each_from_its_own_beginning() -> None:
    spec = served("net", stages=1).spec
    zoo = Zoo(Path(), {name: Weighed(Path(), spec, 1000, 0.1) for name in ("one", "two")})
    plan = live.MemoryPlan(rounds=2, blocks=1, seconds=6.0, calibration=3.0)
    found = plan.stretches(zoo)
    assert [len(calls) > 10 for calls in found] == [True] * 5
    for calls, length in zip(found, (3.0, 6.0, 3.0, 6.0, 3.0), strict=True):
        assert all(0.0 <= at < length for at, _ in calls)
    assert found == plan.stretches(zoo)
    assert {model for calls in found for _, model in calls} == {"one", "two"}


def test_where_nobody_is_answered_there_is_no_ratio() -> None:
    seconds, nobody = np.array([0.01, 0.02]), np.array([inf, inf])
    load = Load("net", "graph", [Round(seconds, [nobody])])
    assert load.ratio("mean", 0).value == inf
    assert rows([load], 0)[0]["mean ms"] == "15.00 / -"


@pytest.mark.parametrize("model", ["chain", "backwards"])
def test_live_and_simulated_hold_the_same_requests(models: Path, model: str) -> None:
    asked = subject_of(models, model)
    plan = live.Plan(load=0.3, rounds=1, blocks=1, seconds=0.2, calibration=0.2, deadline=1000.0)
    (load,) = live.loads({model: asked.path}, ["late"], {model: Rows(asked.inputs)}, plan, Setting(), quiet)
    (one,) = load.rounds
    assert load.did.launches > 0
    assert load.would.launches > 0
    assert len(one.live) == len(one.simulated[0]) > 0
    assert np.isfinite(one.live).all()
    assert np.isfinite(one.simulated[0]).all()
