"""What scheduling costs is measured for a queue that keeps its length, and stages pay from where they first do."""

import pytest

from research.overhead.scheduler import measure
from research.overhead.stage_length import Worth, run


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


@pytest.mark.parametrize(
    ("ratios", "least"),
    [((0.9, 0.95, 1.05), 2.5), ((0.9, 1.1, 1.2), 1.5), ((1.1, 1.2, 1.3), 1.0), ((1.1, 1.2, 0.9), None)],
)
def test_stages_pay_from_the_length_behind_which_they_never_lose(
    ratios: tuple[float, ...], least: float | None
) -> None:
    assert Worth(False, (1.0, 2.0, 3.0), ratios).least == (None if least is None else pytest.approx(least))


def test_a_dear_launch_makes_stages_lose_unless_many_leave_early() -> None:
    without, with_exits = run(launch=3e-4, requests=60, seeds=1)
    assert without.ratios[0] < 1.0
    assert all(exits > none for exits, none in zip(with_exits.ratios, without.ratios, strict=True))
