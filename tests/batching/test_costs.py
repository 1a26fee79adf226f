"""What runs cost: by the profile, by what launches have taken since, and by who leaves where; and slack."""

import pytest

from latebind.batching.costs import MOVED, Estimate, Pace
from latebind.batching.late import all_in_time
from latebind.batching.requests import Lane, Models
from latebind.batching.workers import BatchTable, SubBatch, Worker
from latebind.domain.actions import Run
from latebind.domain.config import PolicyConfig
from latebind.domain.costs import Curve, ModelCosts, at_any_length
from latebind.domain.events import Arrived, Event, StageDone
from latebind.domain.model import ModelSpec
from latebind.scheduler import Scheduler
from tests.batching.chains import DECODER, ENCODER, STATIC, chain, config, request, view
from tests.models import SCORES, VECTOR, served

LINEAR = Curve((1, 64), (1.0, 64.0))  # a batch takes as long as its requests one by one


def after(served_launch: float, *, times: int = 300) -> Estimate:
    served = chain(STATIC, ENCODER, DECODER, output_steps=(4,), curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    for _ in range(times):
        estimate.observe(2.0 + served_launch, 2, 1, 1)
    return estimate


def test_each_launch_to_come_costs_what_launches_have_cost_more_than_by_the_profile() -> None:
    plain, found = after(0.0), after(0.5)
    assert found.pace.launch == pytest.approx(0.5, rel=1e-3)
    assert found.unit(1, 0) == pytest.approx(1.5, rel=1e-3)
    assert found.whole(3, inputs=5) == pytest.approx(plain.whole(3, inputs=5) + 0.5 * (1 + 5), rel=1e-3)
    assert found.rest(1, 1, 3, 5) == pytest.approx(plain.rest(1, 1, 3, 5) + 0.5 * 2, rel=1e-3)
    for stage, step in ((1, 0), (1, 2), (2, 0)):
        parts = found.between(1, stage, step, 5) + found.rest(1, stage, step, 5)
        assert parts == pytest.approx(found.whole(1, 5))


def test_where_launches_cost_more_larger_batches_pay() -> None:
    """One by one is as quick as together by the profile; with half a second for each launch it is not."""
    served = chain(STATIC, curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    assert estimate.worth_batching(16) == 1
    for _ in range(300):
        estimate.observe(1.5, 1, 0, 1)
    assert estimate.worth_batching(16) > 8


def test_on_a_quicker_machine_than_the_profile_says_small_batches_are_not_taken_to_pay() -> None:
    """Together is a quarter quicker; all that has run are single requests, in half the time of the profile."""
    served = chain(STATIC, curve=Curve((1, 8), (1.0, 6.0)))
    estimate = Estimate(served.spec, served.costs)
    for _ in range(300):
        estimate.observe(0.5, 1, 0, 1)
    assert estimate.pace.launch < 0.0
    assert estimate.answered(8).quickest == 8
    assert estimate.worth_batching(8) == 6  # within a fiftieth of 8
    assert dict(estimate.answered(8).rates)[1] == pytest.approx(1 / 0.5, rel=0.05)


def test_steps_of_a_decoder_and_what_comes_before_them_are_learned_apart() -> None:
    """Reading takes a second more than by the profile, and a step half of it."""
    served = chain(STATIC, DECODER, output_steps=(4,), curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    for i in range(600):
        batch = 1 + i % 16
        estimate.observe(batch + 1.0, batch, 0, 1)
        for _ in range(4):
            estimate.observe(0.5 * batch, batch, 1, 1)
    assert estimate.unit(4, 0) == pytest.approx(5.0, rel=0.05)
    assert estimate.unit(4, 1) == pytest.approx(2.0, rel=0.05)
    assert estimate.whole(4) == pytest.approx(5.0 + 4 * 2.0, rel=0.05)
    assert estimate.between(4, 1, 0, 1) == pytest.approx(5.0, rel=0.05)


def test_after_a_doubt_the_next_launch_alone_says_what_launches_take() -> None:
    pace = Pace(least=-0.3)
    for i in range(200):
        pace.observe(1.0 + i % 3, 10.0 * (1.0 + i % 3))
    pace.doubt()
    assert (pace.factor, pace.launch) == (0.1, 0.0)  # the least that is believed
    pace.observe(2.0, 2.2)
    assert 2.0 * pace.factor + pace.launch == pytest.approx(2.2)
    assert pace.launches == 1


def test_the_scheduler_hears_how_long_stages_take_and_takes_more_at_once() -> None:
    scheduler = Scheduler(config(PolicyConfig("lazy+", shed=False), chain(STATIC, max_batch=8, curve=LINEAR)))
    sizes, now = [], 0.0
    event: Event = Arrived("net", 1e9, tuple(range(500)), tuple(range(500)))
    while runs := [action for action in scheduler.handle(event, now) if isinstance(action, Run)]:
        sizes.append(len(runs[0].requests))
        now += sizes[-1] + 0.5
        event = StageDone(0)
        scheduler.check()
    assert sizes[0] == 1
    assert sizes[1:30] == [8] * 29  # the quickest for all who wait
    assert sizes[-2:] == [2, 1]  # when few are left and nobody comes, some of them are answered first


def test_a_pause_of_the_machine_is_no_cost_of_launches() -> None:
    steady, paused = Pace(least=-1.0), Pace(least=-1.0)
    for number in range(200):
        steady.observe(1.0, 1.5)
        paused.observe(1.0, 100.0 if number == 199 else 1.5)
    assert steady.factor + steady.launch == pytest.approx(1.5, rel=0.01)
    assert paused.factor + paused.launch < 1.7


def test_each_end_has_the_share_of_requests_that_leaves_there() -> None:
    model = served(stages=4, seconds=0.01, hit_rates={0: 0.5, 2: 0.2})
    seconds, shares = Estimate(model.spec, model.costs).ends()
    assert seconds == pytest.approx((0.01, 0.03, 0.04))
    assert shares == pytest.approx((0.5, 0.2, 0.3))


def test_the_work_of_a_request_is_what_its_share_of_all_runs_in_the_best_batches() -> None:
    spec = ModelSpec("net", "1", (VECTOR,), (SCORES,), 2, 8, (0,))
    costs = ModelCosts(at_any_length(Curve((1, 8), (1.0, 8.0)), Curve((1, 8), (4.0, 4.0))), hit_rates={0: 0.75})
    found = Estimate(spec, costs)
    assert found.work(1) == pytest.approx(1.0 + 0.25 * 4.0)
    assert found.work(8) == pytest.approx(1.0 + 0.25 * 4.0 / 8)


def test_what_is_observed_to_leave_takes_the_place_of_what_was_profiled() -> None:
    model = served(stages=3, seconds=0.01, hit_rates={0: 0.8, 1: 0.1})
    found = Estimate(model.spec, model.costs)
    before = found.changes
    for _ in range(20):
        found.observe_exits(0, 10, 8)
        found.observe_exits(1, 2, 1)
    assert found.changes == before  # as profiled: of those who are left half leave next
    assert found.ends()[1] == pytest.approx((0.8, 0.1, 0.1))
    for _ in range(200):
        found.observe_exits(0, 10, 4)
    assert found.changes > before
    assert found.alive[1] == pytest.approx(0.6, abs=MOVED)
    assert found.ends()[1][0] == pytest.approx(0.4, abs=MOVED)


def test_aside_who_ran_a_stage_is_told_before_who_left_behind_it() -> None:
    model = served(stages=3, seconds=0.01, hit_rates={0: 0.5}, aside=0.001)
    found = Estimate(model.spec, model.costs)
    for _ in range(200):
        found.observe_exits(0, 10, 0)
        found.observe_exits(0, 0, 9)
    assert found.alive[1] == pytest.approx(0.1, abs=MOVED)


def test_the_best_rate_looks_past_an_exit_that_few_take_and_counts_who_is_left() -> None:
    served = chain(*(STATIC,) * 5, curve=LINEAR, hit_rates={0: 0.1, 1: 0.8})
    found = Estimate(served.spec, served.costs)
    answers, seconds = zip(*found.prospects(0, 10), strict=True)
    assert answers == pytest.approx((1.0, 9.0, 10.0))
    assert seconds == pytest.approx((10.0, 10.0 + 9.0, 10.0 + 9.0 + 3.0))
    assert found.best_rate(0, 10) == pytest.approx(9.0 / 19.0)


STEEP = Curve((1, 2), (1.0, 2.0))


def test_a_request_takes_what_algorithm_1_says() -> None:
    served = chain(STATIC, ENCODER, DECODER, output_steps=tuple(range(1, 11)))
    estimate = Estimate(served.spec, served.costs)
    assert estimate.outputs == 9  # nine of ten answers are no longer
    assert estimate.whole(1, inputs=4) == 1 + 4 + 9
    assert estimate.whole(1, inputs=4, outputs=2) == 1 + 4 + 2


def test_by_profile_a_flat_curve_lets_more_in_and_what_is_done_counts() -> None:
    flat, steep = chain(*(STATIC,) * 8), chain(*(STATIC,) * 8, curve=STEEP)
    waiting = [request(number, arrived=4, due=40) for number in range(2, 8)]
    running = request(1, arrived=0, due=16, started=2)
    seen, model = view(flat, running, stage=2)
    assert all_in_time(seen, model, waiting, 4)  # two to catch up and six together end at 12
    seen, model = view(steep, running, stage=2)
    assert not all_in_time(seen, model, waiting[:1], 4)  # two to catch up and six of two seconds end at 18


def test_who_is_late_already_keeps_nobody_out() -> None:
    seen, model = view(chain(*(STATIC,) * 8), request(1, arrived=0, due=5, started=2), stage=2)
    assert all_in_time(seen, model, [request(2, arrived=4, due=40)], 4)


def test_those_below_must_be_in_time_too() -> None:
    """The newest batch is of another model: who waits under it goes on only when both are through."""
    below, above = chain(*(STATIC,) * 8, name="below"), chain(*(STATIC,) * 4, name="above")
    models = Models()
    lanes = [Lane(served, models) for served in (below, above)]
    for due, fits in ((14, True), (11, False)):
        first = request(1, arrived=0, due=due)
        second = request(2, arrived=0, due=100)
        entries = [SubBatch(below.spec, {1: first}, 2), SubBatch(above.spec, {2: second}, 2)]
        newcomers = [request(3, arrived=0, due=100)]
        assert all_in_time(Worker(models, BatchTable(entries)), lanes[1], newcomers, 2.0) is fits


def test_who_has_written_for_long_is_taken_to_write_a_long_answer() -> None:
    served = chain(DECODER, output_steps=(*(2,) * 18, 5, 9))
    estimate = Estimate(served.spec, served.costs)
    assert [estimate.outputs_after(steps) for steps in (0, 1, 2, 5, 9, 20)] == [2, 2, 9, 9, 10, 21]


def test_nobody_is_let_past_who_would_make_a_long_answer_late() -> None:
    """Three steps of an answer that is one of the few long ones: six more end at 6, and with a newcomer's read at 7."""
    served = chain(STATIC, DECODER, output_steps=(*(2,) * 9, 5, 9))
    newcomer = request(2, arrived=0.0, due=100.0)
    for due, lets in ((6.5, False), (7.5, True)):
        seen, model = view(served, request(1, arrived=-4.0, due=due, steps=3), stage=1)
        assert all_in_time(seen, model, [newcomer], 0.0) is lets
