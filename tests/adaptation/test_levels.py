"""Which levels of an operating curve are used: comparisons in, decisions out."""

from collections.abc import Sequence
from functools import partial
from random import Random

import pytest

from latebind.adaptation.controller import (
    BUILT,
    FULL_DEPTH,
    PATIENCE,
    Decision,
    FidelityWatch,
    Retrain,
    Use,
    Version,
    VersionLevel,
)
from latebind.adaptation.levels import Levels, of_each_level
from latebind.learned.promise import Promise

FIDELITIES, TARGET = (0.99, 0.97, 0.95, 0.9), 0.97
CLASSES = 2
MADE = "000001"


def shows(wrong: int, rows: int, fidelity: float) -> bool:
    return Promise(fidelity, 0.999).lower_bound(wrong, rows) >= fidelity


def version(
    name: str, fidelities: Sequence[float] = FIDELITIES, *, wrong: Sequence[float] = (0.0, 0.0), seconds: float = 0.5
) -> Version:
    """A version that has these levels; at those below the target, classes are answered `wrong` so often."""
    each = [
        VersionLevel(one, one, {"a": one}, tuple(wrong) if one < TARGET else (0.0,) * CLASSES) for one in fidelities
    ]
    return Version(name, (0.0,) * CLASSES, (seconds,) * CLASSES, levels=tuple(each))


def levels(wanted: str = BUILT, *others: Version, stopped: bool = False) -> Levels:
    full = Version(FULL_DEPTH, (0.0,) * CLASSES, (1.0,) * CLASSES)
    known = {} if wanted == FULL_DEPTH else {one.name: one for one in (version(BUILT), *others)}
    return Levels(FIDELITIES, TARGET, full, known, wanted, shows, stopped=stopped)


def compare(found: Levels, *same: bool, times: int = 1) -> list[str]:
    """Compare so often, of one class, and return the versions that were to be used."""
    decisions = list[Decision]()
    for _ in range(times):
        decisions += found.answered(0)
        decisions += found.compared_each(same, at=found.total)
    return uses(decisions)


def uses(decisions: Sequence[Decision]) -> list[str]:
    return [one.version for one in decisions if isinstance(one, Use)]


def test_an_alarm_below_the_target_stops_the_level_and_those_below_and_leaves_the_surer_ones() -> None:
    found = levels()
    assert compare(found, True, True, False, True, times=15) == [found.asked] == ["built@0.97"]
    assert (found.wanted, found.open) == (BUILT, 2)
    assert found.alarms == 1


def test_a_lower_level_falls_first_and_then_a_surer_one() -> None:
    found = levels()
    fell = compare(found, True, True, True, False, times=20) + compare(found, True, True, False, False, times=20)
    assert fell == ["built@0.95", "built@0.97"]


@pytest.mark.parametrize("level", [0, 1])
def test_an_alarm_at_the_target_or_a_surer_level_stops_exits_and_calls_for_a_version(level: int) -> None:
    found = levels()
    decisions = list[Decision]()
    while found.asked == BUILT:
        found.answered(0)
        decisions = found.compared_each([place != level for place in range(4)], at=found.total)
    (use, retrain) = decisions
    assert uses([use]) == [FULL_DEPTH]
    assert isinstance(retrain, Retrain)
    assert retrain.alarmed
    assert (found.open, found.alarms) == (0, 1)
    assert [one.alarms for one in found.levels] == [int(place == level) for place in range(4)]
    assert found.known() == (FULL_DEPTH,)
    assert uses(found.learned(version(MADE), 1.0)) == [MADE], "each level is used again once a version has it"


def test_a_sample_that_tells_of_one_level_counts_for_that_alone() -> None:
    """As one of a crowd of which some were dropped does."""
    found, only = levels(), (None, None, None, False)
    for _ in range(20):
        found.answered(0)
        found.compared_each(only, at=found.total)
    assert [len(level.last) for level in found.levels] == [0, 0, 0, 20]
    assert [level.compared for level in found.levels[:3]] == [0, 0, 0]
    assert found.asked == "built@0.95"


@pytest.mark.parametrize(
    ("level", "overload", "found"),
    [
        (None, True, [True, False, False]),
        (1, True, [True, True, False]),
        (2, False, [True, False, True]),
        (2, True, [None, None, True]),
    ],
)
def test_a_sample_of_the_last_level_says_nothing_of_others_where_some_are_dropped_there(
    level: int | None, overload: bool, found: list[bool | None]
) -> None:
    assert of_each_level([True, False, False], level, True, overload=overload) == found


def test_a_level_comes_back_once_the_samples_since_show_it_and_not_before_a_surer_one() -> None:
    found = levels()
    compare(found, True, True, False, True, times=20)
    assert compare(found, True, True, True, True, times=2_000) == [BUILT], "0.9 had no alarm, and waits for 0.95 alone"
    found = levels()
    compare(found, True, True, False, False, times=20)
    assert compare(found, True, True, True, True, times=10_000)[-1] == BUILT


def test_a_level_that_is_no_better_stays_stopped() -> None:
    found, random = levels(), Random(1)
    compare(found, True, True, True, False, times=20)
    for _ in range(5_000):
        assert not compare(found, True, True, True, random.random() > 0.2)
    assert found.asked == "built@0.95"


def test_a_new_version_is_used_with_all_of_its_levels_but_those_that_fell_while_it_was_made() -> None:
    found = levels()
    compare(found, True, True, True, False, times=20)
    compare(found, True, True, True, True, times=90)  # and a lesson is called for
    assert uses(found.learned(version(MADE), 1.0)) == [MADE]
    found = levels()
    compare(found, True, True, True, True, times=100)
    compare(found, True, True, True, False, times=20)
    assert uses(found.learned(version(MADE), 1.0)) == [f"{MADE}@0.95"]


def test_of_a_version_that_lacks_levels_those_that_it_has_are_used() -> None:
    found = levels()
    assert uses(found.learned(version(MADE, (0.97, 0.95)), 1.0)) == [MADE]
    assert found.open == 3
    assert compare(found, True, True, False, True, times=15) == [f"{MADE}@0.97"]
    found = levels()
    assert uses(found.learned(version(MADE, (TARGET,)), 1.0)) == [MADE], "as one that was made without a floor"
    assert found.open == 2
    assert compare(found, True, True, False, False, times=30) == [], "it runs at no level that would err"


def test_a_level_is_left_while_classes_come_that_it_gets_wrong() -> None:
    found = levels()
    assert uses(found.learned(version(MADE, wrong=(0.0, 0.3)), 1.0)) == [MADE]
    told = list[str]()
    for answer in [0] * 100 + [1] * 100 + [0] * 100:
        told += uses(found.answered(answer))
    assert told[0] == f"{MADE}@0.97"
    assert told[-1] == MADE
    assert set(told) == {MADE, f"{MADE}@0.97"}, "0.95 is left first, and 0.9 waits for it"


def test_what_was_stopped_before_stays_so_until_it_is_shown() -> None:
    assert levels("built@0.95").open == 3
    assert levels(FULL_DEPTH).open == 0
    assert levels(f"{MADE}@0.97", version(MADE)).asked == f"{MADE}@0.97"
    found = levels("built@0.95")
    assert compare(found, True, True, True, True, times=2_000) == [BUILT]


def test_operators_stop_and_begin_all_levels() -> None:
    found = levels()
    assert uses(found.chosen(FULL_DEPTH, None, stopped=True)) == [FULL_DEPTH]
    assert not compare(found, True, True, True, True, times=2_000), "until something else is chosen"
    assert found.learned(version(MADE), 1.0) == []
    found = levels("built@0.97")
    assert uses(found.chosen(BUILT, version(BUILT))) == [BUILT]
    assert found.open == 4


def test_what_the_engine_cannot_use_is_left_for_another_version() -> None:
    found = levels(f"{MADE}@0.97", version(MADE))
    assert uses(found.unusable(MADE)) == ["built@0.97"], "what was stopped stays so"
    assert uses(found.unusable(BUILT)) == [FULL_DEPTH]


@pytest.mark.slow
def test_levels_at_their_fidelity_have_no_more_alarms_together_than_one_watch() -> None:
    """All of them err on the same rows, as levels do, and each just as often as it may."""
    runs, samples, alarms = 40, 2_000, 0
    for run in range(runs):
        random, found = Random(run), levels()
        for _ in range(samples):
            drawn = random.random()
            found.answered(0)
            found.compared_each([drawn < fidelity for fidelity in FIDELITIES], at=found.total)
        alarms += found.alarms
    alone = partial(FidelityWatch, 0.99)
    assert {one.watch._patience for one in levels().levels} == {alone()._patience * len(FIDELITIES)}
    assert alarms <= 1.5 * runs * samples / PATIENCE
