"""Arrivals: as often as their rates say, and only when they say."""

from random import Random

import pytest

from latebind.simulation.workloads import diurnal, stepped
from tests.models import served

NET = served()


def test_arrivals_in_steps_come_at_the_rate_of_each() -> None:
    arrivals = list(stepped(NET, steps=((10.0, 1000), (200.0, 3000)), allowed=1.0, random=Random(0)))
    assert len(arrivals) == 4000
    change = arrivals[999].time
    assert 1000 / change == pytest.approx(10.0, rel=0.1)
    assert 3000 / (arrivals[-1].time - change) == pytest.approx(200.0, rel=0.1)


def test_a_day_is_low_at_its_ends_and_high_at_noon() -> None:
    times = [a.time for a in diurnal(NET, low=10.0, high=110.0, day=100.0, days=2, allowed=1.0, random=Random(1))]
    assert times == sorted(times)
    assert len(times) == pytest.approx(2 * 100 * 60, rel=0.03)
    night = [time for time in times if not 5.0 < time % 100.0 < 95.0]
    noon = [time for time in times if 45.0 < time % 100.0 < 55.0]
    assert len(night) / 20 == pytest.approx(11.0, rel=0.25)
    assert len(noon) / 20 == pytest.approx(109.0, rel=0.1)
