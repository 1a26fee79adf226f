"""Latency curves between and past their measured points."""

import pytest

from latebind.domain.costs import Curve, Grid, ModelCosts, at_any_length, in_turn, length_class

CURVE = Curve((1, 2, 4), (1.0, 1.5, 3.5))


@pytest.mark.parametrize(("batch", "seconds"), [(1, 1.0), (2, 1.5), (3, 2.5), (4, 3.5), (6, 5.5)])
def test_a_curve_is_exact_where_measured_and_linear_elsewhere(batch: int, seconds: float) -> None:
    assert CURVE.at(batch) == pytest.approx(seconds)


def test_a_curve_of_one_point_grows_in_proportion() -> None:
    assert Curve((2,), (1.0,)).at(6) == pytest.approx(3.0)


def test_a_curve_never_falls_below_zero() -> None:
    assert Curve((2, 4), (0.1, 2.0)).at(1) == 0.0


@pytest.mark.parametrize(
    ("batch", "length", "seconds"), [(1, 8, 1.0), (3, 8, 2.5), (1, 16, 3.0), (3, 12, 4.5), (1, 4, 0.0), (2, 32, 11.25)]
)
def test_a_grid_is_linear_between_and_past_its_lengths(batch: int, length: int, seconds: float) -> None:
    grid = Grid((8, 16), (CURVE, Curve((1, 3), (3.0, 6.5))))
    assert grid.makes_sense
    assert grid.at(batch, length) == pytest.approx(seconds)


def test_a_grid_of_one_length_holds_for_all() -> None:
    assert Grid((1,), (CURVE,)).at(3, 500) == CURVE.at(3)


def test_what_is_done_in_turn_takes_the_sum() -> None:
    assert in_turn([CURVE, Curve((1, 2, 4), (0.5, 0.5, 0.5))]) == Curve((1, 2, 4), (1.5, 2.0, 4.0))
    assert in_turn([CURVE]) == CURVE
    assert in_turn([Curve((1,), (0.0,)), CURVE]) == CURVE
    assert in_turn([Curve((1, 3), (1.0, 3.0)), Curve((2, 3), (0.5, 1.0))]) == Curve((1, 2, 3), (1.0, 2.5, 4.0))


def test_what_remains_is_the_full_depth_with_every_lookup() -> None:
    costs = ModelCosts(at_any_length(CURVE, CURVE, CURVE), {1: Curve((1,), (0.25,))})
    assert costs.remaining(0, 2) == pytest.approx(4.5 + 0.5)
    assert costs.remaining(2, 4) == pytest.approx(3.5)


def test_a_typical_length_lies_between_those_that_were_measured() -> None:
    grid = Grid((4, 16, 256), (CURVE,) * 3)
    assert ModelCosts((grid, *at_any_length(CURVE))).typical == 32
    assert ModelCosts(at_any_length(CURVE)).typical == 1


def test_lengths_are_classed_one_by_one_at_first_and_then_within_an_eighth() -> None:
    assert [length_class(length) for length in (1, 7, 16, 17, 18, 33, 36, 37, 512, 513)] == [
        1, 7, 16, 18, 18, 36, 36, 40, 512, 576,
    ]  # fmt: skip
    classes = [length_class(length) for length in range(1, 513)]
    assert len(set(classes)) == 56
    assert all(length <= found <= 1.125 * length for length, found in enumerate(classes, start=1))
