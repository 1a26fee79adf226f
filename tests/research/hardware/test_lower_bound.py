"""The least that requests could take: alone, one after another, shared, and as batches are quick."""

import pytest

from research.hardware.lower_bound import least_seconds, shares_of


def test_whoever_is_alone_takes_what_it_takes_alone() -> None:
    assert least_seconds([0.0, 5.0], [2.0, 3.0], [1.0]) == pytest.approx([2.0, 3.0])


def test_the_shortest_goes_first_and_stops_whoever_has_more_left() -> None:
    assert least_seconds([0.0, 1.0, 1.5], [4.0, 1.0, 10.0], [1.0]) == pytest.approx([5.0, 1.0, 13.5])


def test_those_who_are_there_together_share_what_they_get_done() -> None:
    assert least_seconds([0.0, 0.0], [1.0, 2.0], [1.0, 0.5]) == pytest.approx([1.0, 2.5])


def test_together_they_get_done_what_batches_do() -> None:
    costs = {1: 1.0, 2: 1.25, 3: 1.5, 4: 1.6}
    shares = shares_of(costs.__getitem__, 4)
    assert sum(shares) == pytest.approx(4 / 1.6)
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1.0


def test_larger_batches_that_are_no_quicker_share_nothing() -> None:
    assert shares_of(lambda n: float(n * n), 8) == [1.0]
