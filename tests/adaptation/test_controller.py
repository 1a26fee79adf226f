"""Which version is used, when exits stop and when a new version is asked for: events in, decisions out."""

from dataclasses import replace
from random import Random

import pytest

from latebind.adaptation.controller import (
    CHANGED,
    COMPARED,
    ERRORS_APART,
    ESTABLISHED,
    FIRST_LESSON,
    FULL_DEPTH,
    LOOKS_APART,
    QUICKER,
    SHIFT_APART,
    SHIFTED,
    Controller,
    Decision,
    FidelityWatch,
    Retrain,
    Use,
    Version,
)

TARGET = 0.9
FULL = Version(FULL_DEPTH, (0.0, 0.0), (1.0, 1.0))
BUILT = Version("built", (0.05, 0.05), (0.6, 0.6))
FOR_ZERO = Version("000001", (0.02, 0.6), (0.2, 0.9), {0: 1.0})


def controller() -> Controller:
    return Controller(TARGET, FULL, {"built": BUILT}, "built")


def answered(found: Controller, answer: int, times: int) -> list[Decision]:
    return [decision for _ in range(times) for decision in found.answered(answer)]


def compared(found: Controller, same: bool, *, strange: bool = False) -> list[Decision]:
    return found.compared(same, at=found.total, strange=strange)


def test_the_first_answers_call_for_a_first_lesson_once() -> None:
    found = controller()
    assert answered(found, 0, FIRST_LESSON - 1) == []
    assert answered(found, 0, 10 * FIRST_LESSON) == [Retrain("there is more to learn from")]


def test_a_slower_version_shown_on_less_is_let_go_and_one_shown_on_more_is_used() -> None:
    found = Controller(TARGET, FULL, {"built": Version("built", (0.05, 0.05), (0.6, 0.6), current=500)}, "built")
    answered(found, 0, FIRST_LESSON)
    assert found.learned(Version("000001", (0.01, 0.01), (0.7, 0.7), current=200), 0.0) == []
    assert found.known() == (FULL_DEPTH, "built")
    (use,) = found.learned(Version("000002", (0.01, 0.01), (0.7, 0.7), current=600), 0.0)
    assert isinstance(use, Use)
    (use,) = found.learned(Version("000003", (0.01, 0.01), (0.5, 0.5), current=100), 0.0)
    assert found.wanted == "000003"


def test_what_build_made_is_used_rather_than_something_slower_shown_on_fewer_samples() -> None:
    built = Version("built", (0.01, 0.01), (0.6, 0.6), current=500)
    found = Controller(TARGET, FULL, {"built": built}, "built")
    answered(found, 0, FIRST_LESSON)
    found.learned(Version("000001", (0.01, 0.01), (0.5, 0.5), current=10), 0.0)
    assert found.wanted == "000001"
    assert found.learned(Version("000002", (0.01, 0.01), (0.9, 0.9), current=50), 0.0) == [Use("built", QUICKER)]
    answered(found, 0, 50)
    assert found.wanted == "built"  # the newest that is good
    assert found.learned(Version("000003", (0.01, 0.01), (0.8, 0.8), current=90), 0.0) == []
    found.learned(Version("000004", (0.01, 0.01), (0.55, 0.55), current=90), 0.0)
    assert found.wanted == "000004"


def test_what_build_showed_is_left_once_it_no_longer_speaks_for_the_traffic() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(Version("000001", (0.0, 0.0), (0.2, 0.2), current=900), 0.0)
    (use,) = found.learned(None, 0.0, trusted=False)
    assert isinstance(use, Use)
    assert use.version == found.wanted == FULL_DEPTH
    assert found.known() == (FULL_DEPTH,)
    (use,) = found.learned(Version("000002", (0.0, 0.0), (0.8, 0.8), current=200), 0.0, trusted=False)
    assert isinstance(use, Use)
    assert use.version == "000002"
    assert found.learned(None, 0.0, trusted=False) == []  # it happens once
    assert found.wanted == "000002"


def test_a_version_is_left_when_classes_come_that_it_gets_wrong() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(FOR_ZERO, 0.0)
    decisions = answered(found, 1, 40)
    assert [decision.version for decision in decisions if isinstance(decision, Use)] == ["built"]
    assert any(isinstance(decision, Retrain) for decision in decisions)


def test_it_comes_back_when_its_classes_do() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(FOR_ZERO, 0.0)
    answered(found, 1, 100)
    assert found.wanted == "built"
    answered(found, 0, 100)
    assert found.wanted == "000001"


def test_what_an_operator_chooses_is_used_even_if_it_is_unknown() -> None:
    found = controller()
    assert found.chosen("000007", Version("000007", (0.0, 0.0), (0.5, 0.5))) == [Use("000007", "it was asked for")]
    assert found.known() == (FULL_DEPTH, "000007")


def test_a_version_that_cannot_be_used_is_forgotten_and_the_newest_other_one_wanted() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(FOR_ZERO, 0.0)
    assert found.unusable("000007") == []
    assert found.unusable("000001") == [Use("built", "version 000001 cannot be used")]
    assert found.known() == (FULL_DEPTH, "built")
    assert found.unusable("built") == [Use(FULL_DEPTH, "version built cannot be used")]


def test_exits_that_an_operator_stopped_stay_stopped() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    assert found.chosen(FULL_DEPTH, None, stopped=True) == [Use(FULL_DEPTH, "it was asked for")]
    assert found.learned(FOR_ZERO, 0.0) == []
    assert all(isinstance(decision, Retrain) for decision in answered(found, 0, 200))
    found.chosen("built", BUILT)
    assert found.wanted == "built"


def test_where_the_mix_changes_all_the_time_that_of_a_long_time_counts() -> None:
    """Before a camera things come and go: a version that is good for all together stays while one of them is there."""
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(Version("000001", (0.0, 0.15), (0.2, 0.2), {0: 0.5, 1: 0.5}), 0.0)
    decisions = []
    for number in range(1_000):
        for decision in answered(found, number // 100 % 2, 1):
            decisions.append((number, decision))
            if isinstance(decision, Retrain):
                found.learned(None, 0.0)
    assert found.restless
    late = [decision for number, decision in decisions if number >= 500]
    assert not any(isinstance(decision, Use) or decision.moved for decision in late)
    assert abs(found.shares()[0] - 0.5) < 0.06


def test_an_alarm_stops_exits_and_forgets_all_versions() -> None:
    found = controller()
    answered(found, 0, 20)
    decisions: list[Decision] = []
    while not decisions:
        decisions = compared(found, False)
    use, lesson = decisions
    assert isinstance(use, Use)
    assert use.version == FULL_DEPTH
    assert isinstance(lesson, Retrain)
    assert lesson.alarmed
    assert found.known() == (FULL_DEPTH,)
    assert not any(compared(found, False) for _ in range(100))  # nothing left to stop


def test_answers_that_differ_are_an_alarm_whatever_is_wanted() -> None:
    found, decisions = Controller(TARGET, FULL, {}, FULL_DEPTH), list[Decision]()
    for number in range(1, 101):
        found.answered(0)
        decisions += found.compared(False, at=number, used="000001")
    uses = [decision for decision in decisions if isinstance(decision, Use)]
    assert uses
    assert {use.version for use in uses} == {FULL_DEPTH}


def test_what_had_been_answered_when_an_alarm_came_is_no_other_alarm() -> None:
    found = controller()
    answered(found, 0, 500)
    alarms = sum(any(found.compared(False, at=number, used="built")) for number in range(1, 501))
    assert alarms == found.watch.alarms == 1
    answered(found, 0, 20)
    assert any(found.compared(False, at=number, used="built") for number in range(501, 521))


def test_inputs_that_come_to_look_different_stop_exits_although_answers_are_right() -> None:
    found, decisions = controller(), []

    def look(strange: bool) -> list[Decision]:
        answered(found, 0, LOOKS_APART)
        return compared(found, True, strange=strange)

    for number in range(500):
        decisions += look(number % 100 < 10)
    assert decisions == []  # a tenth, ten in a row, is nothing unusual
    while not decisions:
        number += 1
        decisions += look(True)
    assert number < 540
    assert isinstance(decisions[0], Use)
    assert decisions[0].version == FULL_DEPTH
    assert decisions[1] == Retrain(CHANGED, alarmed=True)
    assert found.known() == (FULL_DEPTH,)


def established() -> Controller:
    """A controller that has seen many right answers."""
    found = controller()
    for _ in range(ESTABLISHED):
        answered(found, 0, 1)
        compared(found, True)
    return found


def test_the_fidelity_told_is_of_all_comparisons_since_the_last_alarm() -> None:
    found = established()
    for number in range(COMPARED):
        answered(found, 0, 1)
        compared(found, number % 50 > 1)  # every other error is left out of the watch
    assert sum(found.last) / len(found.last) == pytest.approx(0.96)
    while compared(found, False) == []:
        answered(found, 0, ERRORS_APART)
    assert list(found.last) == []


def until_an_alarm(fidelity: float, *, apart: int, most: int, seed: int) -> int | None:
    """Return how many comparisons, of every `apart`th answer, an alarm takes that has seen many right answers before.

    Errors are independent.
    """
    random, found = Random(seed), controller()
    for _ in range(ESTABLISHED):
        answered(found, 0, apart)
        compared(found, True)
    for number in range(most):
        answered(found, 0, apart)
        if any(isinstance(one, Use) for one in compared(found, random.random() < fidelity)):
            return number
    return None


@pytest.mark.parametrize("apart", [1, 2, 7])
def test_twice_as_many_errors_as_allowed_are_noticed_however_many_answers_are_compared(apart: int) -> None:
    found = [until_an_alarm(2.0 * TARGET - 1.0, apart=apart, most=4_000, seed=seed) for seed in range(4)]
    assert None not in found
    at_target = [until_an_alarm(TARGET, apart=apart, most=2_000, seed=seed) for seed in range(4)]
    assert sum(alarm is not None for alarm in at_target) <= 1


def looked(found: Controller, *, strange_every: int, times: int, apart: int = SHIFT_APART) -> list[Decision]:
    """What is decided while every so many-th input looks strange and each lesson ends without a version."""
    decisions = []
    for number in range(times):
        for decision in answered(found, 0, apart) + compared(found, True, strange=number % strange_every == 0):
            decisions.append(decision)
            if isinstance(decision, Retrain):
                found.learned(None, 0.0)
    return decisions


def test_inputs_a_third_of_which_look_strange_call_for_a_version_and_leave_exits_on() -> None:
    found = controller()
    decisions = looked(found, strange_every=3, times=100)
    assert decisions.count(Retrain(SHIFTED, moved=True)) == 1  # and not again before long
    assert not any(isinstance(decision, Use) for decision in decisions)
    assert found.wanted == "built"


def test_as_many_strange_inputs_as_usual_call_for_nothing() -> None:
    assert Retrain(SHIFTED, moved=True) not in looked(controller(), strange_every=12, times=2_000)


def test_behind_a_shift_a_slower_version_replaces_the_one_in_use() -> None:
    found = Controller(TARGET, FULL, {"built": replace(BUILT, current=500)}, "built")
    answered(found, 0, FIRST_LESSON)
    slower = Version("000001", (0.01, 0.01), (0.7, 0.7), current=40)
    assert found.learned(slower, 0.0) == []
    looked(found, strange_every=3, times=100)
    found.learned(slower, 0.0)
    assert found.wanted == "000001"


def until_alarm(watch: FidelityWatch, fidelity: float, most: int, random: Random) -> int | None:
    return next((i for i in range(1, most + 1) if watch.add(random.random() < fidelity)), None)


@pytest.mark.parametrize("fidelity", [0.90, 0.85, 0.5, 0.0])
def test_a_fall_is_noticed_within_500_samples_in_20_of_20_trials(fidelity: float) -> None:
    for seed in range(20):
        random, watch = Random(seed), FidelityWatch(0.97)
        assert until_alarm(watch, 0.985, 1_000, random) is None
        assert until_alarm(watch, fidelity, 500, random) is not None


def test_at_the_target_alarms_are_rare() -> None:
    found = [until_alarm(FidelityWatch(0.97), 0.97, 1_000, Random(seed)) for seed in range(40)]
    assert sum(alarm is not None for alarm in found) <= 20  # 4,000 samples apart: in a quarter of the runs
    better = [until_alarm(FidelityWatch(0.97), 0.985, 5_000, Random(seed)) for seed in range(40)]
    assert sum(alarm is not None for alarm in better) <= 2
