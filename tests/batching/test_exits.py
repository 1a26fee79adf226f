"""Who leaves where, by the hit rates of a model."""

import pytest

from latebind.batching.exits import Exits
from latebind.batching.pace import Pace
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.model import ModelSpec
from tests.models import SCORES, VECTOR, served


def test_each_end_has_the_share_of_requests_that_leaves_there() -> None:
    model = served(stages=4, seconds=0.01, hit_rates={0: 0.5, 2: 0.2})
    seconds, shares = Exits(model.spec, model.costs, Pace(-0.005)).ends
    assert seconds == pytest.approx((0.01, 0.03, 0.04))
    assert shares == pytest.approx((0.5, 0.2, 0.3))


def test_the_work_of_a_request_is_what_its_share_of_all_runs_in_the_best_batches() -> None:
    spec = ModelSpec("net", "1", (VECTOR,), (SCORES,), 2, 8, (0,))
    costs = ModelCosts((Curve((1, 8), (1.0, 8.0)), Curve((1, 8), (4.0, 4.0))), hit_rates={0: 0.75})
    exits = Exits(spec, costs, Pace(least=0.0))
    assert exits.work(1) == pytest.approx(1.0 + 0.25 * 4.0)
    assert exits.work(8) == pytest.approx(1.0 + 0.25 * 4.0 / 8)


def test_what_a_worker_answers_at_most_counts_on_others_who_join_those_that_rest() -> None:
    model = served(stages=2, seconds=0.01, hit_rates={0: 0.5})  # four take as long as one
    exits = Exits(model.spec, model.costs, Pace(least=0.0))
    # Of four that begin two go on; the second stage still runs four, every other time.
    assert exits.shares(0, 4, 4).answered == pytest.approx(4 / (0.01 + 0.5 * 0.01))
