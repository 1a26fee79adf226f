"""A shift of looks: more inputs than usual look strange, too few to stop exits, so a new version is called for."""

from dataclasses import replace

from latebind.adaptation.controller import (
    FIRST_LESSON,
    SHIFT_APART,
    SHIFTED,
    Controller,
    Decision,
    Retrain,
    Use,
    Version,
)
from tests.adaptation.controllers import BUILT, FULL, TARGET, answered, compared, controller


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


def test_strange_inputs_that_come_together_count_once_for_a_shift() -> None:
    found, decisions = controller(), []
    for number in range(4_000):
        decisions += answered(found, 0, 1)
        decisions += compared(found, True, strange=number % 150 < SHIFT_APART)
        found.learned(None, 0.0)
    assert Retrain(SHIFTED, moved=True) not in decisions


def test_behind_a_shift_a_slower_version_replaces_one_that_does_not_stand() -> None:
    found = Controller(TARGET, FULL, {"built": replace(BUILT, rows=500)}, "built")
    answered(found, 0, FIRST_LESSON)
    slower = Version("000001", (0.01, 0.01), (0.7, 0.7), rows=40)
    assert found.learned(slower, 0.0) == []
    looked(found, strange_every=3, times=100)
    assert found.learned(slower, 0.0, stands=True) == []
    found.learned(slower, 0.0)
    assert found.wanted == "000001"
