"""Costs as the engine has them: what launches take beyond their profile is learned, and counts wherever costs do."""

from dataclasses import replace

import pytest

from latebind.batching.estimate import Estimate
from latebind.batching.pace import Pace, PaceBySize
from latebind.domain.actions import Run
from latebind.domain.config import PolicyConfig
from latebind.domain.costs import EMPTY_STAGE, Curve
from latebind.domain.events import Arrived, Event, StageDone
from latebind.scheduler import Scheduler
from research.policies import BATCHING
from tests.batching.chains import DECODER, ENCODER, STATIC, chain, config, play
from tests.models import served

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


def test_a_machine_that_is_slower_all_over_is_not_taken_for_dear_launches() -> None:
    served = chain(STATIC, STATIC, curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    for i in range(600):
        batch = 1 + i % 16
        estimate.observe(1.5 * batch + 0.2, batch, 1, 1)
    assert estimate.pace.factor == pytest.approx(1.5, rel=0.1)
    assert estimate.pace.launch == pytest.approx(0.2, abs=0.45)
    assert estimate.unit(8, 1) == pytest.approx(12.2, rel=0.05)


def test_where_launches_cost_more_larger_batches_pay() -> None:
    """One by one is as quick as together by the profile; with half a second for each launch it is not."""
    served = chain(STATIC, curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    assert estimate.worth_batching(16) == 1
    for _ in range(300):
        estimate.observe(1.5, 1, 0, 1)
    assert estimate.worth_batching(16) > 8


def test_tokens_a_second_follow_what_launches_have_cost() -> None:
    served = chain(STATIC, DECODER, output_steps=(4,), curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    assert estimate.tokens(4) == pytest.approx([1.0] * 4)
    for i in range(600):
        batch = 1 + i % 4
        estimate.observe(batch + 8.0, batch, 1, 1)
    assert estimate.tokens(2) == pytest.approx([1 / 9, 2 / 10], rel=0.05)
    assert estimate.tokens(4)[2:] == pytest.approx([3 / 11, 4 / 12], rel=0.05)
    assert len(estimate.tokens(1)) == 1


def test_where_sizes_are_compared_each_has_what_its_own_launches_took() -> None:
    """By the profile batches of 4 take 0.8 a request and of 8 0.73; launches of 2 to 4 take 1.4 times as long."""
    curve = Curve(tuple(range(1, 9)), tuple(1.0 + 4.86 / 7 * (batch - 1) for batch in range(1, 9)))
    served = chain(STATIC, max_batch=8, curve=curve)
    estimate, plain = (Estimate(served.spec, served.costs) for _ in range(2))
    for i in range(1200):
        batch = 1 + i % 8
        estimate.observe((1.4 if 2 <= batch <= 4 else 1.0) * plain.whole(batch), batch, 0, 1)
    found = dict(estimate.answered(8).rates)
    for batch, rate in found.items():
        true = batch / plain.whole(batch) / (1.4 if 2 <= batch <= 4 else 1.0)
        assert rate == pytest.approx(true, rel=0.06), batch
    assert found[1] > found[2]
    assert estimate.worth_batching(4) == 1
    assert plain.worth_batching(4) == 4


def test_a_size_has_its_share_after_some_launches_and_keeps_it_through_one_that_was_held_up() -> None:
    sizes = PaceBySize({1, 4})
    sizes.observe(4, 1.0)
    assert (sizes.share(4), sizes.changes) == (1.0, 0)
    for _ in range(100):
        sizes.observe(4, 1.2)
    assert sizes.share(4) == pytest.approx(1.2, abs=0.03)
    assert sizes.share(1) == 1.0
    then = sizes.changes
    for _ in range(3):
        sizes.observe(4, 1e3)
    assert sizes.share(4) < 1.25
    assert sizes.changes == then + 1


def test_a_pause_in_one_of_the_first_launches_keeps_no_size_from_running() -> None:
    sizes = PaceBySize({1, 8})
    sizes.observe(8, 3.0)
    assert sizes.share(8) < 1.05


def test_the_first_launches_of_a_size_count_for_more_than_later_ones() -> None:
    """They count as much as the line, which counts as four launches; a hundred launches would settle a later change."""
    sizes = PaceBySize({4})
    for _ in range(4):
        sizes.observe(4, 1.2)
    assert sizes.share(4) == pytest.approx(1.1, abs=0.02)


def test_sizes_that_were_not_profiled_have_one_share() -> None:
    sizes = PaceBySize({1, 2, 4})
    for _ in range(50):
        sizes.observe(3, 1.2)
        sizes.observe(5, 1.2)
    assert sizes.share(3) == sizes.share(7) == pytest.approx(1.2, abs=0.03)
    assert sizes.share(2) == sizes.share(4) == 1.0


def test_sizes_are_compared_anew_when_the_launches_of_one_have_differed_from_the_line() -> None:
    """The line stays where it is: only what is known of sizes changes."""
    served = chain(STATIC, max_batch=8, curve=Curve((1, 7, 8), (1.0, 31 / 7, 5.0)))
    estimate = Estimate(served.spec, served.costs)
    assert (estimate.answered(8).quickest, estimate.worth_batching(8)) == (8, 7)
    then = estimate.pace.changes
    for _ in range(100):
        estimate.by_size.observe(8, 2.0)
    assert estimate.pace.changes == then
    assert estimate.answered(8).quickest == 4
    for _ in range(100):
        estimate.by_size.observe(7, 2.0)
    assert estimate.worth_batching(8) == 6


def test_a_size_whose_launches_take_longer_is_not_taken_to_pay_on_a_quicker_machine() -> None:
    """Everything takes half a second less than by the profile, but batches of 8 twice as long as the line says."""
    served = chain(STATIC, max_batch=8, curve=Curve((1, 8), (1.0, 6.0)))
    estimate = Estimate(served.spec, served.costs)
    for _ in range(300):
        estimate.observe(0.5, 1, 0, 1)
    assert estimate.pace.launch < 0.0
    for _ in range(100):
        estimate.by_size.observe(8, 2.0)
    assert estimate.answered(8).quickest == 4


def test_until_a_launch_has_differed_from_the_profile_no_size_has_a_share_of_its_own() -> None:
    served = chain(STATIC, max_batch=8, curve=Curve((1, 8), (1.0, 5.0)))
    estimate = Estimate(served.spec, served.costs)
    estimate.observe(5.0, 8, 0, 1)
    estimate.observe(50.0, 8, 0, 1)
    assert (estimate.by_size.share(8), estimate.by_size.changes) == (1.0, 0)
    estimate.observe(5.0, 8, 0, 1)
    assert estimate.by_size.changes > 0


def test_a_model_with_a_decoder_has_no_shares_by_size() -> None:
    served = chain(STATIC, DECODER, output_steps=(4,), curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    for i in range(100):
        batch = 1 + i % 8
        estimate.observe((1.4 if batch < 4 else 1.0) * batch, batch, i % 2, 1)
    assert estimate.pace.known
    assert estimate.decoding.known
    assert estimate.by_size.changes == 0


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


def test_a_quicker_machine_than_the_profile_says_is_believed_within_reason() -> None:
    assert after(-0.3).pace.launch == pytest.approx(-0.3, rel=1e-3)
    found = after(-1.7)
    assert found.unit(2, 1) == pytest.approx(0.3, rel=1e-2)
    assert 0.0 < found.unit(1, 1) < 0.3  # a launch is never given back more than half of what the shortest stage takes


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
    assert not pace.doubted


def test_a_launch_as_profiled_ends_a_doubt_too() -> None:
    pace = Pace(least=-0.3)
    pace.doubt()
    pace.observe(2.0, 2.0)
    assert (pace.factor, pace.launch) == (1.0, 0.0)


def test_a_launch_that_takes_nothing_by_its_profile_ends_a_doubt_of_all_others() -> None:
    pace = Pace(least=-0.3)
    pace.doubt()
    pace.observe(0.0, 0.1)
    assert (pace.factor, pace.launch) == (1.0, 0.1)


def test_a_doubt_is_for_steps_of_a_decoder_and_for_what_comes_before_them() -> None:
    served = chain(STATIC, DECODER, output_steps=(4,), curve=LINEAR)
    estimate = Estimate(served.spec, served.costs)
    before = estimate.whole(1)
    estimate.doubt()
    assert estimate.whole(1) == pytest.approx(0.1 * before)
    estimate.observe(1.0, 1, 0, 1)
    assert estimate.doubted  # no step was seen
    estimate.observe(1.0, 1, 1, 1)
    assert not estimate.doubted
    assert estimate.whole(1) == pytest.approx(before)


def test_nothing_is_learned_in_a_simulation() -> None:
    for policy in ("lazy+", "lazy", "graph"):
        timeline = play(PolicyConfig(BATCHING[policy], shed=False), chain(*(STATIC,) * 5), [0.1 * i for i in range(40)])
        assert isinstance(timeline.scheduler, Scheduler)
        lanes = timeline.scheduler._lanes.values()
        assert [lane.estimate.pace.known for lane in lanes] == [False]


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


def test_an_empty_stage_that_is_taken_to_cost_nothing_has_no_share() -> None:
    net = served(stages=3, hit_rates={0: 0.5}, aside=0.0005)
    costs = replace(net.costs, stages=(EMPTY_STAGE, *net.costs.stages[1:]))
    estimate = Estimate(net.spec, costs)
    for _ in range(50):  # a machine that is quicker than the profile says
        for stage, seconds in enumerate((1e-6, 0.007, 0.007)):
            estimate.observe(seconds, 1, stage, 1)
    assert estimate.pace.launch == 0.0
    assert estimate.by_size.share(1) == pytest.approx(1.0, abs=0.1)
