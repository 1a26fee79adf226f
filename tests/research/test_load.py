"""The benchmark of depth by the load, on digits: every side's answers are counted by what real lookups answer."""

from random import Random

import pytest

from latebind.bench.subject import Subject
from latebind.learned.promise import Promise
from research.gati import load
from tests.digits import Built


@pytest.fixture(scope="module")
def trial(built: Built) -> load.Trial:
    rows, labels = built.rows
    subject = Subject(built.directory.path.parent.parent, "digits", rows, labels)
    return load.Trial(subject, Promise(0.9, 0.8, answers=None), floor=0.85, below=1.0, backend=None)


def test_bursts_have_the_mean_rate_and_three_times_as_many_while_they_last() -> None:
    arrivals = load.drawn(load.BURSTS, 100.0, 50_000, 7, Random(0))
    end = arrivals[-1][0]
    assert 50_000 / end == pytest.approx(100.0, rel=0.05)
    inside = sum(time % 25.0 < load.BURST_SECONDS for time, _ in arrivals if time < end - end % 25.0)
    assert inside / ((end - end % 25.0) / 25.0 * load.BURST_SECONDS) == pytest.approx(300.0, rel=0.05)


def test_alone_everybody_runs_to_the_end_and_in_a_crowd_more_are_right_and_in_time_than_at_fixed_thresholds(
    trial: load.Trial,
) -> None:
    case = trial.case(0)
    rows, alone = case.levels.left_at.shape[1], sum(trial.builder.stages)
    few = [(100.0 * number, number % rows) for number in range(20)]
    played = load.play(case, load.OURS, few, 10 * alone)
    assert (played.good, played.answered, played.wrong) == (20, {0: 20}, {0: 0})
    rate = 2.0 * load.capacity(case, Random(1), 500)
    crowd = load.drawn(load.STEADY, rate, 3_000, rows, Random(2))
    found = {side: load.play(case, side, crowd, 10 * alone) for side in load.POLICIES}
    assert found[load.OURS].good >= 0.9 * found[load.FIXED].good  # thresholds that hold together are stricter
    assert sum(found[load.OURS].answered.values()) <= 3_000
    assert set(found[load.AT_FLOOR].answered) == {len(case.levels.left_at) - 2}
    assert set(found[load.FIXED].answered) == {case.target}


def test_tables_have_a_row_for_each_load_and_each_class_of_promise(trial: load.Trial) -> None:
    loads, patterns = (0.5, 2.0), (load.STEADY,)
    table, promises = load.compare(
        trial, loads=loads, patterns=patterns, deadline=10.0, requests=300, seeds=(0,), tell=lambda text, share: None
    )
    assert [row["load"] for row in table] == ["50%", "200%"]
    assert all(set(load.POLICIES) <= set(row) for row in table)
    told = [float(str(row["promised"])) for row in promises]
    assert told == sorted(told, reverse=True)
    assert all(str(row["runs under it"]).endswith(" of 1") for row in promises)
