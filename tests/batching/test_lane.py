"""What a model's requests count as, before they begin."""

import pytest

from latebind.batching.lane import Lane
from latebind.batching.request import Request
from latebind.batching.view import Models
from tests.batching.chains import DECODER, ENCODER, chain
from tests.models import served


def test_a_sequence_counts_as_what_inputs_that_come_and_answers_take_in_the_mean() -> None:
    """Nine answers in ten are no longer than eight steps; inputs are taken to have twenty until some have come."""
    lane = Lane(chain(ENCODER, DECODER, output_steps=(2, 8)), Models(), hopes=True)
    lane.update_work(2)
    assert lane.seconds_per_request == pytest.approx((20 + 5) / 2)
    for number in range(200):
        lane.add(Request(number, "net", number, 1e3, float(number), inputs=4))
    lane.update_work(2)
    assert lane.seconds_per_request == pytest.approx((4 + 5) / 2)


def test_what_to_expect_is_the_same_until_launches_take_longer_or_the_wait_is_another() -> None:
    lane = Lane(served(stages=1, seconds=0.01), Models(), hopes=False)
    first = lane.outlook(0.0)
    assert lane.outlook(0.0) is first
    assert lane.outlook(0.5).wait == 0.5
    for _ in range(100):
        lane.estimate.observe(0.02, 1, 0, 1)
        slower = lane.outlook(0.0)
    assert slower.whole > 1.9 * first.whole
