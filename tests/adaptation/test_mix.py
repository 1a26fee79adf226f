"""The mix of classes answered of late."""

import pytest

from latebind.adaptation.mix import Mix


def mix_of(answers: list[int], memory: int = 10) -> Mix:
    mix = Mix(memory)
    for answer in answers:
        mix.add(answer)
    return mix


def test_shares_are_of_the_last_answers_only() -> None:
    assert mix_of([7] * 10 + [1] * 8 + [2] * 2).shares() == {1: 0.8, 2: 0.2}


def test_a_figure_by_class_is_expected_as_classes_come() -> None:
    assert mix_of([0, 0, 0, 1]).expect([0.1, 0.5]) == pytest.approx(0.2)
    assert Mix().expect([1.0]) == 0.0


def test_distance_is_the_largest_change_of_one_class() -> None:
    mix = mix_of([0] * 6 + [1] * 4)
    assert mix.distance({0: 0.5, 1: 0.3, 2: 0.2}) == pytest.approx(0.2)
    assert mix.distance({0: 0.6, 1: 0.4}) == pytest.approx(0.0)


def test_few_answers_are_at_no_distance_yet() -> None:
    assert mix_of([0] * 4).distance({1: 1.0}) == 0.0
