"""GATI's traffic application simulated: what the paper says of it comes out, planners are compared fairly."""

import numpy as np
import pytest

from latebind.domain.errors import ConfigError
from latebind.domain.query import NOT_RUN
from research.gati import queries as report
from research.gati.queries import (
    EVERY,
    LoadedTask,
    Result,
    Task,
    baseline,
    caches_only,
    replanned,
    run,
    run_loaded,
    sides,
    sweep,
)
from research.gati.traffic import FACES, OBJECTS, TABLE_5, VEHICLES, Traffic
from research.sides import Side


def play(side: Side, deadline: float, requests: int = 1000) -> Result:
    return run(Task(side, deadline, Traffic(), requests))


@pytest.mark.parametrize(("gate", "gain"), [("ResNet-18", 1.72), ("ResNet-34", 1.835), ("ResNet-50", 1.95)])
def test_table_6_caches_make_a_gate_as_much_quicker_as_reported(gate: str, gain: float) -> None:
    (option,) = [i for i, timed in enumerate(TABLE_5[OBJECTS]) if timed.name == gate]
    outlook = Traffic().outlook(OBJECTS, option, caches=True)
    assert outlook.whole / outlook.mean == pytest.approx(gain)
    assert sum(outlook.chances) == pytest.approx(1.0)
    assert list(outlook.ends) == sorted(outlook.ends)


def test_a_gain_beyond_everybody_leaving_is_told() -> None:
    with pytest.raises(ConfigError, match=r"gain is 3\.0: give 1 to"):
        Traffic(gain=3.0)


def test_section_7_with_80_ms_four_fifths_get_the_larger_models() -> None:
    planned, found = play(baseline("equal"), 0.080), play(replanned("equal"), 0.080)
    assert report.models_of(planned, FACES) == {"SE-LResNet18E-IR": 1.0}
    assert report.models_of(planned, VEHICLES) == {"ResNet-18": 1.0}
    assert report.models_of(found, FACES)["SE-LResNet50E-IR"] == pytest.approx(0.79, abs=0.04)
    assert report.models_of(found, VEHICLES)["ResNet-50"] == pytest.approx(0.80, abs=0.04)


def test_requests_go_one_way_or_end_after_the_gate() -> None:
    ran = play(baseline("equal"), 0.1).picks != NOT_RUN
    assert ran[:, OBJECTS].all()
    assert ran[:, FACES].mean() == pytest.approx(0.46, abs=0.04)
    assert ran[:, VEHICLES].mean() == pytest.approx(0.45, abs=0.04)
    assert not (ran[:, FACES] & ran[:, VEHICLES]).any()


def test_a_request_counts_by_the_models_that_ran_and_only_in_time() -> None:
    found = play(baseline("proportional"), 0.060)
    (face, vehicle) = (np.flatnonzero(found.picks[:, node] != NOT_RUN)[0] for node in (FACES, VEHICLES))
    assert found.seconds[face] == pytest.approx(0.02736 + 0.03675)
    assert (found.right()[face], found.right(in_time=False)[face]) == (0.0, pytest.approx(0.911 * 0.976))
    assert found.right()[vehicle] == pytest.approx(0.911 * 0.918)


def test_only_early_exits_may_be_wrong() -> None:
    found = play(replanned("equal"), 0.1)
    assert found.early.mean() == pytest.approx(0.835, abs=0.03)
    ratio = found.right(wrong=0.01) / found.right()
    assert ratio[found.early] == pytest.approx(0.99)
    assert ratio[~found.early] == pytest.approx(1.0)
    assert not play(baseline("equal"), 0.1).early.any()


@pytest.mark.parametrize("name", EVERY)
def test_replanning_never_costs_accuracy_nor_time_limits(name: str) -> None:
    for deadline in sweep(0.020):
        ours, theirs = play(replanned(name), deadline, 100), play(baseline(name), deadline, 100)
        assert report.gain(ours, theirs) > -1e-9
        assert ours.late.mean() <= theirs.late.mean()


def test_the_sweep_is_that_of_the_paper() -> None:
    assert sweep(0.020) == (0.06, 0.08, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)
    assert len(sweep(0.005)) == 29


def test_both_bars_have_to_be_met_at_once() -> None:
    priced, theirs = play(replanned("expected", 1.0), 0.1), play(baseline("proportional"), 0.1)
    more_accurate = play(replanned("expected", 0.0), 0.1)
    quicker = play(caches_only("equal"), 0.1)
    assert report.at_once(priced, theirs)
    assert report.gain(more_accurate, theirs) > 2.0
    assert not report.at_once(more_accurate, theirs)
    assert not report.at_once(quicker, play(baseline("equal"), 0.1))


def test_by_default_accuracy_and_latency_gain_enough_at_once_where_deadlines_are_tight() -> None:
    assert report.at_once(play(replanned("expected"), 0.075), play(baseline("expected"), 0.075))
    for other in ("equal", "proportional"):
        assert report.at_once(play(replanned("expected"), 0.090), play(baseline(other), 0.090))


def test_by_default_our_planner_is_half_a_point_above_the_better_split_over_the_sweep() -> None:
    def right(name: str, deadline: float) -> float:
        return float(play(replanned(name), deadline).right().mean())

    gains = [right("expected", d) - max(right("equal", d), right("proportional", d)) for d in sweep(0.020)]
    assert 100 * sum(gains) / len(gains) > 0.45  # 0.50 of 20,000 requests


def test_tables_have_a_row_for_each_cell() -> None:
    found = {deadline: {side: play(side, deadline, 200) for side in sides((1.0,))} for deadline in (0.08, 0.1)}
    assert len(report.side_rows(found, lambda one: f"{one.right().mean():.2f}")) == 10
    assert [row["deadline ms"] for row in report.benefit_rows(found)] == ["80", "100"]
    assert [row["deadline ms"] for row in report.better_rows(found)] == ["80", "100", "mean of the sweep"]
    assert len(report.own_rows(found)) == 2 * 2
    assert len(report.promise_rows(found)) == 4 * 3


def loaded(side: Side, load: float, requests: int = 150) -> LoadedTask:
    return LoadedTask(side, 0.080, load, Traffic(), requests)


def test_with_hardly_any_load_the_scheduler_does_what_was_played_by_hand() -> None:
    found, by_hand = run_loaded(loaded(replanned("equal"), 0.001, 400)), play(replanned("equal"), 0.080)
    assert found.missed == 0.0
    assert found.right.mean() == pytest.approx(by_hand.right().mean(), abs=0.004)
    assert found.seconds.mean() == pytest.approx(by_hand.seconds.mean(), rel=0.05)


def test_past_what_the_workers_carry_some_are_shed() -> None:
    assert run_loaded(loaded(baseline("equal"), 2.0)).missed > 0.2
