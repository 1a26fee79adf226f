"""Which version is used and when a new one is asked for: events in, decisions out."""

from itertools import pairwise

import pytest

from latebind.adaptation.controller import (
    FIRST_LESSON,
    FULL_DEPTH,
    GROWTH,
    LONG_MEMORY,
    MOST_APART,
    QUICKER,
    REMEMBERED,
    Controller,
    Retrain,
    Use,
    Version,
)
from tests.adaptation.controllers import BUILT, FOR_ZERO, FULL, TARGET, answered, controller


def test_the_first_answers_call_for_a_first_lesson_once() -> None:
    found = controller()
    assert answered(found, 0, FIRST_LESSON - 1) == []
    assert answered(found, 0, 10 * FIRST_LESSON) == [Retrain("there is more to learn from")]


def test_lessons_come_each_time_there_is_half_as_much_again_but_never_too_far_apart() -> None:
    found, at = controller(), []
    for number in range(1, 12_000):
        if any(isinstance(decision, Retrain) for decision in found.answered(0)):
            at.append(number)
            found.learned(None, 0.0)
    assert at[:5] == [100, 150, 225, 338, 507]
    assert [later - earlier for earlier, later in pairwise(at)][-3:] == [MOST_APART] * 3


def test_what_was_learned_is_used() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    (use,) = found.learned(FOR_ZERO, 0.0)
    assert isinstance(use, Use)
    assert use.version == found.wanted == "000001"


def test_a_slower_version_shown_on_less_is_let_go_and_one_shown_on_more_is_used() -> None:
    found = Controller(TARGET, FULL, {"built": Version("built", (0.05, 0.05), (0.6, 0.6), rows=500)}, "built")
    answered(found, 0, FIRST_LESSON)
    assert found.learned(Version("000001", (0.01, 0.01), (0.7, 0.7), rows=200), 0.0) == []
    assert found.known() == (FULL_DEPTH, "built")
    (use,) = found.learned(Version("000002", (0.01, 0.01), (0.7, 0.7), rows=600), 0.0)
    assert isinstance(use, Use)
    (use,) = found.learned(Version("000003", (0.01, 0.01), (0.5, 0.5), rows=100), 0.0)
    assert found.wanted == "000003"


def test_a_version_that_stands_is_kept_beside_a_slower_one_shown_on_more() -> None:
    found = Controller(TARGET, FULL, {"built": Version("built", (0.01, 0.01), (0.6, 0.6), rows=500)}, "built")
    answered(found, 0, FIRST_LESSON)
    assert found.learned(Version("000001", (0.01, 0.01), (0.7, 0.7), rows=600), 0.0, stands=True) == []
    found.learned(Version("000002", (0.01, 0.01), (0.5, 0.5), rows=600), 0.0, stands=True)
    assert found.wanted == "000002"


def test_what_build_made_is_used_rather_than_something_slower_shown_on_fewer_samples() -> None:
    built = Version("built", (0.01, 0.01), (0.6, 0.6), rows=500)
    found = Controller(TARGET, FULL, {"built": built}, "built")
    answered(found, 0, FIRST_LESSON)
    found.learned(Version("000001", (0.01, 0.01), (0.5, 0.5), rows=10), 0.0)
    assert found.wanted == "000001"
    assert found.learned(Version("000002", (0.01, 0.01), (0.9, 0.9), rows=50), 0.0) == [Use("built", QUICKER)]
    answered(found, 0, 50)
    assert found.wanted == "built"  # the newest that is good
    assert found.learned(Version("000003", (0.01, 0.01), (0.8, 0.8), rows=90), 0.0) == []
    found.learned(Version("000004", (0.01, 0.01), (0.55, 0.55), rows=90), 0.0)
    assert found.wanted == "000004"


@pytest.mark.parametrize(("built_wrong", "rows"), [(0.2, 50), (0.01, 600)])
def test_not_where_build_is_wrong_about_the_classes_that_come_or_more_samples_say_otherwise(
    built_wrong: float, rows: int
) -> None:
    built = Version("built", (built_wrong, 0.01), (0.6, 0.6), rows=500)
    found = Controller(TARGET, FULL, {"built": built}, "built")
    answered(found, 0, FIRST_LESSON)
    found.learned(Version("000001", (0.01, 0.01), (0.5, 0.5), rows=10), 0.0)
    found.learned(Version("000002", (0.01, 0.01), (0.9, 0.9), rows=rows), 0.0)
    assert found.wanted == "000002"


def test_what_build_showed_is_left_once_it_no_longer_speaks_for_the_traffic() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(Version("000001", (0.0, 0.0), (0.2, 0.2), rows=900), 0.0)
    (use,) = found.learned(None, 0.0, trusted=False)
    assert isinstance(use, Use)
    assert use.version == found.wanted == FULL_DEPTH
    assert found.known() == (FULL_DEPTH,)
    (use,) = found.learned(Version("000002", (0.0, 0.0), (0.8, 0.8), rows=200), 0.0, trusted=False)
    assert isinstance(use, Use)
    assert use.version == "000002"
    assert found.learned(None, 0.0, trusted=False) == []  # it happens once
    assert found.wanted == "000002"


def test_distrust_does_not_begin_what_an_operator_has_stopped() -> None:
    found = controller()
    found.chosen(FULL_DEPTH, None, stopped=True)
    assert found.learned(None, 0.0, trusted=False) == []


def test_a_version_is_left_when_classes_come_that_it_gets_wrong() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(FOR_ZERO, 0.0)
    decisions = answered(found, 1, 40)
    assert [decision.version for decision in decisions if isinstance(decision, Use)] == ["built"]
    assert any(isinstance(decision, Retrain) for decision in decisions)


def test_a_version_stays_while_the_mix_comes_that_it_was_made_for() -> None:
    """A few answers of a class that it gets wrong are no reason: it was shown with those."""
    mixed = Version("000001", (0.02, 0.5), (0.2, 0.9), {0: 0.85, 1: 0.15})
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(mixed, 0.0)
    answered(found, 1, 30)
    assert found.mix.shares()[1] == 0.3
    assert found.wanted == "000001"
    answered(found, 1, 30)
    assert found.wanted == "built"


def test_it_comes_back_when_its_classes_do() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    found.learned(FOR_ZERO, 0.0)
    answered(found, 1, 100)
    assert found.wanted == "built"
    answered(found, 0, 100)
    assert found.wanted == "000001"


def test_to_be_taken_up_again_a_version_must_do_better_than_to_stay() -> None:
    nearly = Version("built", (0.095, 0.095), (0.6, 0.6))
    staying = Controller(TARGET, FULL, {"built": nearly}, "built")
    coming_back = Controller(TARGET, FULL, {"built": nearly}, FULL_DEPTH)
    assert answered(staying, 0, 50) == answered(coming_back, 0, 50) == []


def test_so_many_versions_are_remembered_and_no_more() -> None:
    found = controller()
    names = [f"{number:06d}" for number in range(2 * REMEMBERED)]
    for number, name in enumerate(names):
        found.learned(Version(name, (0.0, 0.0), (0.5 / (number + 1),) * 2), 0.0)
    assert found.known() == (FULL_DEPTH, "built", *names[-1 - REMEMBERED :])


def test_versions_are_made_for_all_that_came_since_the_traffic_changed() -> None:
    found = controller()
    answered(found, 0, 100)
    found.learned(None, 0.0)
    while Retrain("the mix of classes has changed", moved=True) not in found.answered(1):
        found.learned(None, 0.0)
    answered(found, 1, 150)
    answered(found, 0, 50)
    assert found.shares() == {0: 0.25, 1: 0.75}


def test_after_a_change_the_next_lesson_comes_when_a_first_one_would_have_been_followed() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    answered(found, 1, FIRST_LESSON)
    found.learned(None, 0.0)
    while not any(decision == Retrain("the mix of classes has changed", moved=True) for decision in found.answered(1)):
        found.learned(None, 0.0)
    found.learned(None, 0.0)
    assert answered(found, 1, round(FIRST_LESSON * GROWTH) - 1) == []
    assert found.answered(1) == [Retrain("there is more to learn from")]


def test_without_any_version_that_is_good_the_network_runs_whole() -> None:
    found = Controller(TARGET, FULL, {"000001": FOR_ZERO}, "000001")
    answered(found, 1, 100)
    assert found.wanted == FULL_DEPTH


def test_an_interval_without_another_reason_is_one() -> None:
    found = controller()
    assert found.waited(5.0, 10.0) == []
    answered(found, 0, 5)
    assert found.waited(14.0, 10.0) == []
    assert found.waited(15.0, 10.0) == [Retrain("its interval has passed")]
    assert found.waited(40.0, 10.0) == []  # it is learning


def test_an_interval_begins_when_a_lesson_has_ended() -> None:
    found = controller()
    assert found.waited(0.0, 10.0) == []
    answered(found, 0, FIRST_LESSON)
    found.learned(None, 9.0)
    assert found.waited(18.0, 10.0) == []
    assert found.waited(19.0, 10.0) == [Retrain("its interval has passed")]


def test_an_interval_in_which_nobody_asked_calls_for_nothing() -> None:
    found = controller()
    assert [found.waited(now, 10.0) for now in (0.0, 20.0, 40.0)] == [[], [], []]


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


def test_exits_stay_stopped_over_a_restart() -> None:
    found = Controller(TARGET, FULL, {}, FULL_DEPTH, stopped=True)
    answered(found, 0, FIRST_LESSON)
    assert found.learned(FOR_ZERO, 0.0) == []
    assert found.wanted == FULL_DEPTH


def test_exits_that_an_operator_stopped_stay_stopped() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    assert found.chosen(FULL_DEPTH, None, stopped=True) == [Use(FULL_DEPTH, "it was asked for")]
    assert found.learned(FOR_ZERO, 0.0) == []
    assert all(isinstance(decision, Retrain) for decision in answered(found, 0, 200))
    found.chosen("built", BUILT)
    assert found.wanted == "built"


def test_before_a_camera_the_newest_version_is_used() -> None:
    found = Controller(TARGET, FULL, {"built": Version("built", (0.05, 0.05), (0.6, 0.6), rows=500)}, "built")
    answered(found, 0, FIRST_LESSON)
    found.learned(Version("000001", (0.01, 0.01), (0.5, 0.5), rows=300), 0.0, trusted=False)
    found.learned(Version("000002", (0.01, 0.01), (0.7, 0.7), rows=200), 0.0, trusted=False)
    assert found.wanted == "000002"


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


def test_while_the_mix_is_restless_versions_are_made_for_all_that_came() -> None:
    found, given = controller(), [0] * FIRST_LESSON
    answered(found, 0, FIRST_LESSON)
    found.learned(None, 0.0)
    while not found.restless:
        given.append((len(given) - FIRST_LESSON) // 100 % 2)
        found.answered(given[-1])
        found.learned(None, 0.0)
    assert found.shares() == {answer: given.count(answer) / len(given) for answer in (0, 1)}


def test_a_mix_that_has_settled_is_no_longer_restless() -> None:
    found = controller()
    answered(found, 0, FIRST_LESSON)
    for number in range(600):
        found.learned(None, 0.0)
        found.answered(number // 100 % 2)
    assert found.restless
    answered(found, 0, 2 * LONG_MEMORY)
    assert not found.restless
