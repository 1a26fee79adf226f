"""What scheduling costs is measured for a queue that keeps its length."""

import pytest

from research.overhead.scheduler import measure


@pytest.mark.parametrize("waiting", [0, 10])
def test_a_boundary_and_a_decision_take_some_time(waiting: int) -> None:
    found = measure("lazy+", waiting=waiting, events=400, rounds=1, seed=0)
    assert found.boundary.clock > 0.0
    assert found.decision.clock > 0.0
    assert found.events > 0.0


def test_boundaries_are_told_apart_by_whether_somebody_could_have_left() -> None:
    found = measure("late", waiting=0, events=600, rounds=1, seed=0)
    assert all(one.clock > 0.0 for one in (found.boundary, found.plain, found.lookup))
    alike = measure(
        "late", waiting=0, events=10, rounds=1, seed=0
    )  # of ten events none is behind a lookup where all stay
    assert alike.plain.clock > 0.0
    assert alike.lookup.clock == 0.0
