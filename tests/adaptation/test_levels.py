"""Which levels of an operating curve are used: comparisons in, decisions out."""

from functools import partial
from random import Random

import pytest

from latebind.adaptation.controller import BUILT, FULL_DEPTH, PATIENCE, SHOWN, Decision, FidelityWatch, Use, Version
from latebind.adaptation.levels import Levels
from latebind.learned.promise import Promise

FIDELITIES = (0.99, 0.97, 0.9)


def shows(wrong: int, rows: int, fidelity: float) -> bool:
    return Promise(fidelity, 0.999).lower_bound(wrong, rows) >= fidelity


def levels(wanted: str = BUILT, *, stopped: bool = False) -> Levels:
    return Levels(FIDELITIES, wanted, shows, stopped=stopped)


def compare(found: Levels, *same: bool, times: int = 1) -> list[Decision]:
    decisions = []
    for _ in range(times):
        found.answered(0)
        decisions += found.compared(same, at=found.total)
    return decisions


def version(decision: Decision) -> str:
    assert isinstance(decision, Use)
    return decision.version


def test_an_alarm_at_a_level_stops_it_and_those_below_and_leaves_the_surer_ones() -> None:
    found = levels()
    (stopped,) = compare(found, True, False, True, times=9)
    assert version(stopped) == found.wanted == "built@0.99"
    assert found.open == 1
    assert found.alarms == 1


def test_an_alarm_at_the_surest_level_stops_exits() -> None:
    found = levels()
    (stopped,) = compare(found, False, True, True, times=6)
    assert version(stopped) == FULL_DEPTH
    assert found.open == 0


def test_a_lower_level_falls_first_and_then_a_surer_one() -> None:
    found = levels()
    decisions = compare(found, True, True, False, times=20) + compare(found, True, False, False, times=20)
    assert [version(one) for one in decisions] == ["built@0.97", "built@0.99"]


def test_a_level_comes_back_once_the_samples_since_show_it_and_not_before_a_surer_one() -> None:
    found = levels()
    compare(found, True, False, True, times=20)
    again = compare(found, True, True, True, times=2_000)
    assert again == [Use(BUILT, SHOWN)], "0.9 never had an alarm, and waits for 0.97 alone"
    found = levels()
    compare(found, False, True, False, times=20)
    again = compare(found, True, True, True, times=10_000)
    assert [version(one) for one in again] == ["built@0.97", BUILT][-len(again) :]
    assert found.wanted == BUILT


def test_a_level_that_is_no_better_stays_stopped() -> None:
    found, random = levels(), Random(1)
    compare(found, True, True, False, times=20)
    for _ in range(5_000):
        assert not compare(found, True, True, random.random() > 0.2)
    assert found.wanted == "built@0.97"


def test_what_was_stopped_before_stays_so_until_it_is_shown() -> None:
    assert levels("built@0.97").open == 2
    assert levels(FULL_DEPTH).open == 0
    found = levels("built@0.97")
    assert [version(one) for one in compare(found, True, True, True, times=2_000)] == [BUILT]


def test_operators_stop_and_begin_all_levels() -> None:
    found = levels()
    assert [version(one) for one in found.chosen(FULL_DEPTH, None, stopped=True)] == [FULL_DEPTH]
    assert not compare(found, True, True, True, times=20_000), "until something else is chosen"
    compare(found, True, False, True, times=20)
    assert [version(one) for one in found.chosen(BUILT, Version(BUILT))] == [BUILT]
    assert found.open == 3


def test_what_the_engine_cannot_use_is_left_for_the_whole_network() -> None:
    found = levels()
    assert found.unusable("built@0.97") == []
    assert [version(one) for one in found.unusable(BUILT)] == [FULL_DEPTH]
    assert found.wanted == FULL_DEPTH


@pytest.mark.slow
def test_levels_at_their_fidelity_have_no_more_alarms_together_than_one_watch() -> None:
    """All of them err on the same rows, as levels do, and each just as often as it may."""
    runs, samples, alarms = 40, 2_000, 0
    for run in range(runs):
        random, found = Random(run), levels()
        for _ in range(samples):
            drawn = random.random()
            found.answered(0)
            found.compared([drawn < fidelity for fidelity in FIDELITIES], at=found.total)
        alarms += found.alarms
    alone = partial(FidelityWatch, 0.99)
    assert alone()._patience * len(FIDELITIES) == levels().levels[0].watch._patience
    assert alarms <= 1.5 * runs * samples / PATIENCE
