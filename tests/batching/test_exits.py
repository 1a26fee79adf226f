"""Who leaves where, by the hit rates of a model."""

import pytest

from latebind.batching.exits import Exits
from latebind.batching.pace import Pace
from tests.models import served


def test_each_end_has_the_share_of_requests_that_leaves_there() -> None:
    model = served(stages=4, seconds=0.01, hit_rates={0: 0.5, 2: 0.2})
    seconds, shares = Exits(model.spec, model.costs, Pace(-0.005)).ends
    assert seconds == pytest.approx((0.01, 0.03, 0.04))
    assert shares == pytest.approx((0.5, 0.2, 0.3))
