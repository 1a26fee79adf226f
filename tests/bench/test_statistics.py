"""Paired ratios and their intervals."""

from math import inf

import numpy as np
import pytest

from latebind.bench.statistics import ratio_of_means


def test_the_interval_covers_the_true_ratio_about_as_often_as_it_says() -> None:
    random = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        above, below = random.gamma(4, 0.5, 400), random.gamma(4, 0.25, 400)
        interval = ratio_of_means(above, below, block=10, seed=seed)
        assert interval.low <= interval.value <= interval.high
        covered += interval.low <= 2.0 <= interval.high
    assert covered >= 88


def test_equal_runs_have_the_ratio_one_exactly() -> None:
    values = np.random.default_rng(1).gamma(4, 1, 100)
    interval = ratio_of_means(values, values, block=10, seed=0)
    assert (interval.value, interval.low, interval.high) == pytest.approx((1.0, 1.0, 1.0))


@pytest.mark.filterwarnings("error")
def test_where_some_draws_have_nothing_below_the_interval_has_no_upper_end() -> None:
    interval = ratio_of_means(np.ones(3), np.array([3.0, 0.0, 0.0]))
    assert (interval.value, interval.low, interval.high) == pytest.approx((1.0, 1 / 3, inf))
