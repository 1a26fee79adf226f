"""When errors and strange inputs stop exits, and what follows: events in, decisions out."""

from random import Random

import pytest

from latebind.adaptation.controller import (
    CHANGED,
    ERRORS_APART,
    ESTABLISHED,
    FIRST_LESSON,
    FULL_DEPTH,
    LOOKS_APART,
    TOLD,
    Controller,
    Decision,
    Retrain,
    Use,
    Version,
)
from tests.adaptation.controllers import FOR_ZERO, FULL, TARGET, answered, compared, controller


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


def test_after_an_alarm_lessons_come_as_often_as_at_the_start() -> None:
    found = controller()
    answered(found, 0, 15 * FIRST_LESSON)
    while not compared(found, False):
        pass
    found.learned(None, 0.0)
    assert answered(found, 0, FIRST_LESSON - 1) == []
    assert found.answered(0) == [Retrain("there is more to learn from")]


def test_new_versions_do_not_blind_the_watch() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    alarms = 0
    for number in range(200):
        alarms += any(isinstance(decision, Use) for decision in compared(found, number % 4 != 0))
        if number % 10 == 0:
            found.learned(Version(f"{number:06d}", (0.01, 0.01), (0.5 / (number + 1),) * 2), 0.0)
    assert alarms


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


def errors_until_an_alarm(found: Controller, *, apart: int) -> int:
    for errors in range(1, 1_000):
        answered(found, 0, apart)
        if compared(found, False):
            return errors
    raise AssertionError("no alarm")


def established() -> Controller:
    """A controller that has seen many right answers."""
    found = controller()
    for _ in range(ESTABLISHED):
        answered(found, 0, 1)
        compared(found, True)
    return found


def test_what_the_whole_network_answers_establishes_no_version() -> None:
    found = Controller(TARGET, FULL, {}, FULL_DEPTH)
    for _ in range(2 * ESTABLISHED):
        answered(found, 0, 1)
        compared(found, True)
    assert not found.established
    assert established().established


def test_errors_that_follow_each_other_count_once_when_much_has_been_compared() -> None:
    together = errors_until_an_alarm(established(), apart=1)
    apart = errors_until_an_alarm(established(), apart=ERRORS_APART)
    assert (apart - 1) * ERRORS_APART < together <= apart * ERRORS_APART


def test_while_little_has_been_compared_every_error_counts() -> None:
    assert errors_until_an_alarm(controller(), apart=1) == errors_until_an_alarm(controller(), apart=ERRORS_APART)


def test_behind_an_alarm_every_error_counts_again() -> None:
    found = established()
    errors_until_an_alarm(found, apart=1)
    answered(found, 0, FIRST_LESSON)
    found.learned(FOR_ZERO, 0.0, trusted=False)
    assert errors_until_an_alarm(found, apart=1) < ERRORS_APART


def test_what_looks_strange_for_a_moment_counts_once() -> None:
    found = controller()
    for _ in range(20):
        answered(found, 0, LOOKS_APART)
        assert not any(compared(found, True, strange=False) for _ in range(50))
        assert not any(compared(found, True, strange=True) for _ in range(50))


def test_the_fidelity_told_is_of_all_comparisons_since_the_last_alarm() -> None:
    found = established()
    for number in range(TOLD):
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
    found = [until_an_alarm(2.0 * TARGET - 1.0, apart=apart, most=4_000, seed=seed) for seed in range(10)]
    assert None not in found
    at_target = [until_an_alarm(TARGET, apart=apart, most=2_000, seed=seed) for seed in range(10)]
    assert sum(alarm is not None for alarm in at_target) <= 3
