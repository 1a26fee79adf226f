"""The benchmark of depth by the load, on digits: every side's answers are counted by what real lookups answer."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import numpy as np
import pytest

from latebind.bench.subject import Setting, Subject
from latebind.domain.errors import ConfigError
from latebind.learned.build import CURVE
from latebind.learned.promise import Promise
from research.gati import load, load_live
from tests.digits import Built
from tests.research.conftest import quiet


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


def test_all_rows_come_before_any_comes_again() -> None:
    rows = [row for _, row in load.drawn(load.STEADY, 100.0, 30, 10, Random(0))]
    assert [sorted(rows[start : start + 10]) for start in (0, 10, 20)] == [list(range(10))] * 3
    assert rows[:10] != rows[10:20]


def test_alone_everybody_runs_to_the_end_and_a_crowd_is_answered_nearly_as_at_the_floor(trial: load.Trial) -> None:
    with trial.case(0) as case:
        rows, alone = len(case.traffic), trial.alone
        few = [(100.0 * number, number % rows) for number in range(20)]
        played = load.play(case, load.OURS, few, 10 * alone)
        assert (played.good, played.promised.tolist()) == (1.0, [1.0] * 20)
        rate = 2.0 * load.capacity(case, Random(1), 500)
        crowd = load.drawn(load.STEADY, rate, 3_000, rows, Random(2))
        found = {side: load.play(case, side, crowd, 10 * alone) for side in load.POLICIES}
    # Work is counted in the batches that suit it best, and in so small a network it is more: some start too sure.
    for side in (load.NONE_DROPPED, load.OURS):
        assert found[side].good >= 0.8 * found[load.AT_FLOOR].good
    assert all(one.answered.sum() + one.dropped <= 3_000 for one in found.values())
    both = found[load.SHED_FIRST].answered & found[load.FIXED].answered
    assert np.array_equal(found[load.SHED_FIRST].right[both], found[load.FIXED].right[both])
    assert 0 < both.sum() != found[load.FIXED].right[both].sum()
    for side, fidelity in ((load.AT_FLOOR, case.levels.fidelities[-2]), (load.FIXED, 0.9), (load.SHED_FIRST, 0.9)):
        assert set(found[side].promised[found[side].answered]) == {fidelity}


def test_tables_have_a_row_for_each_load_and_each_class_of_promise(trial: load.Trial) -> None:
    cells = load.Cells((0.5, 2.0), (load.STEADY,), 10.0 * trial.alone)
    half = partial(load.simulated, trial, cells, tuple(load.POLICIES), requests=300)
    blocks = load.halves((0,), half, None, quiet)
    table = load.by_load(blocks)
    assert [row["load"] for row in table] == ["50%", "200%"]
    assert all(set(load.POLICIES) <= set(row) for row in table)
    *classes, _ = load.kept(blocks)
    told = [float(str(row["promised"])) for row in classes]
    assert told == sorted(told, reverse=True)


def test_a_run_goes_on_from_the_halves_that_are_there_and_takes_none_of_something_else(tmp_path: Path) -> None:
    made = list[int]()

    def half(seed: int) -> load.Half:
        made.append(seed)
        sides = {load.OURS: of(0.9, seed, 10), load.FIXED: replace(of(0.99, 0, 10), dropped=3, behind=0.25)}
        return {(load.STEADY, 0.6): sides, (load.BURSTS, 2.0): sides}

    shelf = load.Shelf(tmp_path / "new", "this")
    load.halves((0, 1), half, shelf, quiet)
    again = load.halves((0, 1, 2), half, shelf, quiet)
    assert made == [0, 1, 2]
    assert list(again) == [(load.STEADY, 0.6), (load.BURSTS, 2.0)]
    assert [10 - one.right.sum() for one in again[load.STEADY, 0.6][load.OURS]] == [0, 1, 2]
    whole, stored = half(1)[load.BURSTS, 2.0][load.FIXED], again[load.BURSTS, 2.0][load.FIXED][1]
    assert (stored.dropped, stored.behind) == (3, 0.25)
    for column in load.COLUMNS:
        np.testing.assert_array_equal(getattr(stored, column), getattr(whole, column))
    with pytest.raises(ConfigError, match="is of this, not of that"):
        load.halves((0,), half, load.Shelf(tmp_path / "new", "that"), quiet)


def of(promised: float, wrong: int, answers: int, *, distinct: int = 10**6) -> load.Played:
    """Answers of one promise, the first so many of them wrong, and one request that has none."""
    fidelity = np.append(np.full(answers, promised), np.nan)
    right = np.append(np.arange(answers) >= wrong, False)
    return load.Played(fidelity, right, right, np.arange(answers + 1) % distinct)


def kept(*runs: load.Played) -> dict[str, object]:
    (row,) = load.kept({(load.STEADY, 1.0): {load.OURS: list(runs)}})
    return row


def test_a_class_is_under_its_promise_by_what_was_wrong_and_by_more_than_chance_only_if_that_is_unlikely() -> None:
    row = kept(of(0.9, 9, 100), of(0.9, 11, 100), of(0.9, 30, 100))
    assert (row["answers"], row["realized"], row["runs under it"]) == (300, "0.8333", "2 of 3")
    assert row["with a chance under 0.05"] == 1
    assert row["by chance, if exact"] == "1.3"  # 0.417 of each


def test_rows_that_come_again_show_nothing_new() -> None:
    often = of(0.9, 0, 1000, distinct=20)
    wrong = np.isin(often.rows, [0, 1, 2, 3])
    played = replace(often, right=~wrong & often.answered)
    assert kept(played)["runs under it"] == "1 of 1"
    assert kept(played)["with a chance under 0.05"] == 0, "4 of 20 rows: by chance in one of eight runs"


def test_each_quarter_of_the_lengths_is_told_by_itself() -> None:
    lengths = np.arange(1, 101)
    played = load.Played(np.full(100, 0.9), lengths <= 75, lengths <= 75, np.arange(100))
    table = load.kept_by_length({(load.STEADY, 1.0): {load.OURS: [played]}}, lengths)
    assert [row["length"] for row in table] == list(load.QUARTERS)
    assert [row["realized"] for row in table] == ["1.0000", "1.0000", "1.0000", "0.0000"]
    assert {row["answers"] for row in table} == {25}


def test_engines_of_all_sides_answer_the_same_arrivals_and_say_what_they_promise(trial: load.Trial) -> None:
    cells, setting = load.Cells((1.0,), (load.STEADY,), 20.0 * trial.alone), Setting(engine_core=0, paced=0.02)
    sides = load_live.sides(0.85, 1.0)
    half = load_live.live(trial, cells, sides, 0, seconds=0.3, setting=setting)
    found = half[load.STEADY, 1.0]
    assert set(found) == {load.FIXED, load.SLACK_FIT, load.TO_THE_END, load.COMPACTED, load.OURS}
    rows = found[load.OURS].rows
    for side, one in found.items():
        assert one.rows.tolist() == rows.tolist()
        assert set(one.promised[one.answered]) <= {0.9, *(() if side == load.FIXED else (1.0, *CURVE))}
    assert load.by_load(load.halves((0,), lambda _: half, None, quiet))
