"""Who leaves where, by the hit rates of a model."""

import pytest

from latebind.batching.exits import MOVED, Exits
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


def test_what_is_observed_to_leave_takes_the_place_of_what_was_profiled() -> None:
    model = served(stages=3, seconds=0.01, hit_rates={0: 0.8, 1: 0.1})
    exits = Exits(model.spec, model.costs, Pace(-0.005))
    before = exits.changes
    for _ in range(20):
        exits.observe(0, 10, 8)
        exits.observe(1, 2, 1)
    assert exits.changes == before  # as profiled: of those who are left half leave next
    assert exits.ends[1] == pytest.approx((0.8, 0.1, 0.1))
    for _ in range(200):
        exits.observe(0, 10, 4)
    assert exits.changes > before
    assert exits.alive[1] == pytest.approx(0.6, abs=MOVED)
    assert exits.ends[1][0] == pytest.approx(0.4, abs=MOVED)


def test_where_exits_are_stopped_nobody_is_expected_to_leave_and_where_they_begin_again_somebody_is() -> None:
    model = served(stages=3, seconds=0.01, hit_rates={0: 0.8})
    exits = Exits(model.spec, model.costs, Pace(-0.005))
    for _ in range(300):
        exits.observe(0, 8, 0)
    seconds, shares = exits.ends
    assert seconds == pytest.approx((0.03,))
    assert shares == (1.0,)
    assert exits.next(0, 1).seconds == pytest.approx(0.03)
    assert exits.some
    for _ in range(300):
        exits.observe(0, 8, 6)
    assert exits.next(0, 1).seconds == pytest.approx(0.01)
    assert exits.ends[1][0] == pytest.approx(0.75, abs=MOVED)


def test_aside_who_ran_a_stage_is_told_before_who_left_behind_it() -> None:
    model = served(stages=3, seconds=0.01, hit_rates={0: 0.5}, aside=0.001)
    exits = Exits(model.spec, model.costs, Pace(-0.005))
    for _ in range(200):
        exits.observe(0, 10, 0)
        exits.observe(0, 0, 9)
    assert exits.alive[1] == pytest.approx(0.1, abs=MOVED)
