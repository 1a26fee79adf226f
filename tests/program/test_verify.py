"""How far a backend's outputs are from eager's: numbers by their difference, infinities and NaNs by being the same."""

from math import inf, nan

import pytest
import torch

from latebind.program.verify import relative_error


@pytest.mark.parametrize(
    ("found", "expected", "error"),
    [
        ([1.0, 4.0], [1.0, 4.0], 0.0),
        ([1.0, 4.4], [1.0, 4.0], 0.1),
        ([1.0, nan, inf], [1.0, nan, inf], 0.0),
        ([0.0, 1.0], [nan, 1.0], inf),
        ([nan, 1.0], [0.0, 1.0], inf),
        ([inf, 1.0], [-inf, 1.0], inf),
        ([3.4028234663852886e38, 1.0], [inf, 1.0], inf),
        ([inf, 1.0], [nan, 1.0], inf),
        ([], [], 0.0),
    ],
)
def test_an_error_is_relative_to_the_largest_number_and_odd_numbers_must_agree(
    found: list[float], expected: list[float], error: float
) -> None:
    assert relative_error((torch.tensor(found),), (torch.tensor(expected),)) == pytest.approx(error)


def test_another_shape_type_or_number_of_outputs_is_no_match() -> None:
    whole = torch.zeros(2, 3)
    assert relative_error((whole,), (whole, whole)) == inf
    assert relative_error((whole,), (whole.flatten(),)) == inf
    assert relative_error((whole,), (whole.double(),)) == inf
