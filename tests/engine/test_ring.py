"""The numbers of a circular buffer."""

import pytest

from latebind.engine.ring import Ring


def test_who_comes_one_after_the_other_lies_one_behind_the_other() -> None:
    ring = Ring(4)
    assert [ring.take() for _ in range(3)] == [0, 1, 2]


def test_rows_that_are_held_are_passed_over_and_the_ring_goes_on_behind_its_end() -> None:
    ring = Ring(4)
    rows = [ring.take() for _ in range(4)]
    ring.give_back(rows[2])
    ring.give_back(rows[0])
    assert [ring.take(), ring.take()] == [0, 2]


def test_a_ring_that_is_full_says_so() -> None:
    ring = Ring(1)
    ring.take()
    with pytest.raises(IndexError, match="all 1 rows are held"):
        ring.take()
