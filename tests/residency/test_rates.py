"""Gaps to the next request: what was seen counts, what is long silent is not expected, what is unseen is in between."""

from collections.abc import Callable

import pytest

from latebind.residency.rates import FadingGaps, Gaps, MovingGaps, WindowedGaps

KINDS: dict[str, Callable[[], Gaps]] = {
    "window": lambda: WindowedGaps(600.0),
    "moving": lambda: MovingGaps(0.1, 600.0),
    "fading": lambda: FadingGaps(0.1, 600.0, 0.03),
}


def heard(gaps: Gaps, *times: float, name: str = "a") -> Gaps:
    for time in times:
        gaps.heard(name, time)
    return gaps


@pytest.mark.parametrize("kind", KINDS)
def test_whoever_is_asked_for_often_is_expected_sooner(kind: str) -> None:
    gaps = KINDS[kind]()
    for second in range(1000):
        heard(gaps, float(second))
        if second % 10 == 0:
            heard(gaps, float(second), name="b")
    assert gaps.gap("a", 1000.0) == pytest.approx(1.0, rel=0.1)
    assert gaps.gap("b", 1000.0) == pytest.approx(10.0, rel=0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_nobody_asks_for_any_more_is_expected_ever_later(kind: str) -> None:
    gaps = heard(KINDS[kind](), *map(float, range(200)))
    waits = [gaps.gap("a", 200.0 + silence) for silence in (0, 10, 60, 600, 6000, 1e9)]
    assert waits == sorted(waits)
    assert waits[0] < 2.0
    assert waits[3] > 60.0


@pytest.mark.parametrize("kind", KINDS)
def test_an_unseen_model_comes_behind_those_in_use_and_before_those_given_up(kind: str) -> None:
    gaps = heard(KINDS[kind](), *map(float, range(0, 1000, 50)))
    heard(gaps, 5000.0, name="b")
    heard(gaps, *[5000.0 + 50 * i for i in range(50)], name="c")
    now = 7500.0
    assert gaps.gap("c", now) < gaps.gap("unseen", now) < gaps.gap("a", now)


@pytest.mark.parametrize("kind", KINDS)
def test_requests_at_one_time_and_the_longest_silence_have_finite_gaps(kind: str) -> None:
    gaps = heard(KINDS[kind](), *[5.0] * 100)
    assert 0.0 < gaps.gap("a", 5.0) < 1000.0
    assert gaps.gap("a", 1e12) < float("inf")


def test_a_moving_mean_is_by_hand() -> None:
    gaps = heard(MovingGaps(0.5, 8.0), 0.0, 4.0, 6.0)
    assert gaps.gap("a", 6.0) == 4.0  # 8, then (8 + 4) / 2, then (6 + 2) / 2
    assert gaps.gap("a", 11.0) == 5.0


def test_a_window_counts_what_lies_in_it() -> None:
    gaps = heard(WindowedGaps(10.0), 0.0, 1.0, 95.0, 96.0, 99.0)
    assert gaps.gap("a", 100.0) == pytest.approx(10 / 3)


def test_an_open_gap_weighs_little_until_it_is_several_means_long() -> None:
    gaps = heard(FadingGaps(0.1, 10.0, 0.03), *[10.0 * i for i in range(50)])
    assert gaps.gap("a", 490.0 + 10.0) < 12.0
    assert gaps.gap("a", 490.0 + 100.0) > 30.0
