"""Gaps to the next request: what was seen counts, what is long silent is not expected, what is unseen is in between."""

from math import exp

import pytest

from latebind.residency.rates import NEW, JumpingGaps, MovingGap


def observe_all(gaps: JumpingGaps, *times: float, name: str = "a") -> JumpingGaps:
    for time in times:
        gaps.observe(name, time)
    return gaps


def jumping() -> JumpingGaps:
    return JumpingGaps(600.0, 0.03)


def test_a_model_that_is_requested_often_is_expected_sooner() -> None:
    gaps = jumping()
    for second in range(0, 5000, 5):
        observe_all(gaps, float(second))
        if second % 50 == 0:
            observe_all(gaps, float(second), name="b")
    assert gaps.gap("a", 5000.0) == pytest.approx(5.0, rel=0.1)
    assert gaps.gap("b", 5000.0) == pytest.approx(50.0, rel=0.5)


def test_a_model_that_is_not_requested_any_more_is_expected_ever_later() -> None:
    gaps = observe_all(jumping(), *map(float, range(200)))
    waits = [gaps.gap("a", 200.0 + silence) for silence in (0, 10, 60, 600, 6000, 1e9)]
    assert waits == sorted(waits)
    assert waits[0] < 2.5
    assert waits[3] > 60.0


def test_an_unknown_model_and_one_given_up_are_expected_later_than_those_in_use() -> None:
    gaps = observe_all(jumping(), *map(float, range(0, 1000, 50)))
    observe_all(gaps, 5000.0, name="b")
    observe_all(gaps, *[5000.0 + 50 * i for i in range(50)], name="c")
    now = 7500.0
    assert gaps.gap("c", now) < 0.2 * min(gaps.gap("unseen", now), gaps.gap("a", now))


def test_requests_at_one_time_and_the_longest_silence_have_finite_gaps() -> None:
    gaps = observe_all(jumping(), *[5.0] * 100)
    assert 0.0 < gaps.gap("a", 5.0) < 1000.0
    assert gaps.gap("a", 1e12) < float("inf")


def test_a_moving_mean_is_by_hand() -> None:
    gap = MovingGap(0.5, 8.0)
    assert gap.gap(1.0) == 8.0
    for time in (0.0, 4.0, 6.0):
        gap.observe(time)
    assert gap.gap(6.0) == 4.0  # 8, then (8 + 4) / 2, then (6 + 2) / 2
    assert gap.gap(11.0) == 5.0


def test_a_burst_counts_at_once_and_is_soon_over() -> None:
    gaps = observe_all(JumpingGaps(600.0, 0.03), *[100.0 * i for i in range(50)])
    before = gaps.gap("a", 4900.0)
    observe_all(gaps, 4901.0, 4902.0, 4903.0)
    assert before == pytest.approx(100.0, rel=0.3)
    assert gaps.gap("a", 4903.0) < 10.0
    assert gaps.gap("a", 4920.0) > 50.0


def test_by_bayes_rule_over_two_gaps_by_hand() -> None:
    gaps = observe_all(JumpingGaps(10.0, 0.0, gaps=(1.0, 0.1), prior=(0.5, 0.5)), 0.0, 2.0)
    slow, quick = 0.1**2 * exp(-0.2), exp(-2.0)  # two requests, the first one at the start
    assert gaps.gap("a", 2.0) == pytest.approx((slow + quick) / (0.1 * slow + quick))
    slow, quick = slow * exp(-0.5), quick * exp(-5.0)
    assert gaps.gap("a", 7.0) == pytest.approx((slow + quick) / (0.1 * slow + quick))


def test_the_habit_is_what_explained_the_silences_so_far_by_hand() -> None:
    gaps = observe_all(
        JumpingGaps(10.0, 1.0, gaps=(1.0, 0.1), prior=(0.5, 0.5)), 0.0
    )  # the rate always jumps to the habit
    slow = 0.5 * 0.5 + 0.5 * ((1.0 - NEW) / 11.0 + NEW * 0.5)  # no silence: a tenth as likely as the quick one
    assert gaps.gap("a", 0.0) == pytest.approx(1.0 / (0.1 * slow + 1.0 - slow))
