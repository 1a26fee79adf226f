"""The joint policy: who goes on with whom where learned caches let some leave; its parents where it has less."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from latebind.batching.late import together
from latebind.batching.requests import Request
from latebind.domain.actions import Outcome, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, at_any_length
from latebind.domain.events import Arrived, StageDone
from latebind.scheduler import Scheduler
from latebind.simulation.workloads import Arrival
from tests.batching.chains import FLAT, STATIC, Timeline, chain, lane_of

LINEAR = Curve((1, 64), (1.0, 64.0))
HALF_STEEP = Curve((1, 16), (1.0, 8.0))
EARLY = {0: 0.7}  # most leave behind the first stage


def played(
    model: ServedModel, calls: Sequence[Arrival], *, shed: bool = False, max_batch: int = 0
) -> tuple[Timeline, dict[int, tuple[float, Outcome]]]:
    """Return what ran when, and when and how each request ended, counted from 1."""
    timeline = Timeline(SchedulerConfig((model,), 1, PolicyConfig("late", max_batch, shed=shed)))
    records = timeline.run(calls)
    return timeline, {record.request + 1: (record.ended, record.outcome) for record in records}


def call(time: float, leaves_at: int, *, allowed: float = 1e3) -> Arrival:
    return Arrival(time, "net", allowed, leaves_at)


def test_with_one_stage_and_workers_of_several_sizes_it_fills_them_as_elastic_batching_does() -> None:
    model, sizes = chain(STATIC, max_batch=16), (1, 1, 2, 4, 8, 16)
    timeline = Timeline(SchedulerConfig((model,), len(sizes), PolicyConfig("late"), sizes))
    timeline.run([Arrival(0.0, "net", 1e3, 0, rows=12)])
    assert [len(requests) for _, _, requests in timeline.ran] == [8, 4]


def test_newcomers_are_asked_before_a_miss_goes_deep() -> None:
    timeline, ends = played(chain(STATIC, *(STATIC,) * 4, curve=LINEAR, hit_rates=EARLY), [call(0.0, 4), call(0.5, 0)])
    assert timeline.ran[:3] == [(0.0, 0, (1,)), (1.0, 0, (2,)), (2.0, 1, (1,))]
    assert ends[2][0] == 2.0


def test_misses_go_on_one_by_one_where_that_is_as_quick_and_together_where_it_is_quicker() -> None:
    calls = [call(0.0, 2), call(0.5, 2), call(0.5, 2)]
    linear, flat = (
        played(chain(STATIC, STATIC, STATIC, curve=curve, hit_rates=EARLY), calls)[0].ran for curve in (LINEAR, FLAT)
    )
    assert {len(requests) for _, stage, requests in linear if stage} == {1}
    assert [requests for _, stage, requests in flat if stage] == [(1, 2, 3), (1, 2, 3)]


def test_a_full_pool_goes_on_though_newcomers_would_be_quicker() -> None:
    model = chain(STATIC, *(STATIC,) * 4, curve=FLAT, max_batch=2, hit_rates=EARLY)
    timeline, _ = played(model, [call(0.0, 4), call(0.1, 4), *(call(0.2, 0) for _ in range(9))])
    assert timeline.ran[2][1:] == (1, (1, 2))


def test_a_request_that_rests_is_dropped_when_it_is_late() -> None:
    model = chain(STATIC, *(STATIC,) * 4, curve=LINEAR, hit_rates=EARLY)
    _, ends = played(model, [call(0.0, 4, allowed=4.5), call(0.5, 4, allowed=20.0)], shed=True)
    assert ends[1][1] is Outcome.EXPIRED
    assert ends[1][0] <= 5.0  # at the next boundary
    assert ends[2][1] is Outcome.ANSWERED


def test_somebody_with_time_for_the_first_exit_alone_is_not_refused() -> None:
    model = chain(STATIC, STATIC, STATIC, hit_rates=EARLY)
    assert played(model, [call(0.0, 0, allowed=1.5)], shed=True)[1] == {1: (1.0, Outcome.ANSWERED)}


def test_who_waits_counts_as_what_is_run_of_a_request_on_average() -> None:
    """Five stages of a second, of which one in ten runs more than the first: 1.4 seconds, not 5."""
    model = chain(STATIC, *(STATIC,) * 4, curve=LINEAR, hit_rates={0: 0.9})
    _, ends = played(model, [call(0.0, 0, allowed=9.0) for _ in range(6)], shed=True)
    assert [outcome for _, outcome in ends.values()] == [Outcome.ANSWERED] * 6


def test_where_a_large_batch_would_be_late_one_begins_that_is_in_time() -> None:
    """The first begins alone for a second; of those who wait meanwhile six take 3.3, and all are due after four."""
    model = chain(STATIC, STATIC, curve=HALF_STEEP, max_batch=16, hit_rates={0: 0.99})
    _, ends = played(model, [call(0.0, 0, allowed=4.0) for _ in range(20)], shed=True)
    answered = [ended for ended, outcome in ends.values() if outcome is Outcome.ANSWERED]
    assert len(answered) >= 5
    assert max(answered) <= 4.0


def test_of_those_who_rest_as_many_go_on_as_are_in_time_together() -> None:
    """Eight take 4.3 seconds for either stage, four take 2.4, and all are due after seven."""
    model = chain(STATIC, STATIC, curve=HALF_STEEP, max_batch=16, hit_rates={0: 0.5})
    timeline, ends = played(model, [replace(call(0.0, 1, allowed=7.0), rows=8)], shed=True)
    assert [(stage, len(requests)) for _, stage, requests in timeline.ran] == [(0, 8), (1, 4)]
    assert sum(outcome is Outcome.ANSWERED and ended <= 7.0 for ended, outcome in ends.values()) == 4


def misses(*stages: Curve, hits: int) -> tuple[Scheduler, tuple[int, ...]]:
    """Return a scheduler in which so many run the first stage, and who; half of all leave behind `hits`."""
    model = chain(*(STATIC,) * len(stages), max_batch=16, hit_rates={hits: 0.5})
    model = replace(model, costs=replace(model.costs, stages=at_any_length(*stages)))
    scheduler = Scheduler(SchedulerConfig((model,), 1, PolicyConfig("late")))
    everybody = tuple(range(8))
    scheduler.handle(Arrived("net", 1e6, everybody, everybody), 0.0)
    return scheduler, everybody


def test_who_could_not_leave_goes_on_with_those_it_came_with_though_fewer_would_begin() -> None:
    scheduler, begun = misses(FLAT, FLAT, LINEAR, FLAT, hits=2)
    for stage in (1, 2):  # before the last two, two would begin together, for eight are no quicker there
        assert scheduler.handle(StageDone(0), float(stage)) == [Run(0, "net", stage, begun, begun)]


def test_who_could_have_left_is_chosen_anew_though_nobody_has() -> None:
    scheduler, begun = misses(FLAT, LINEAR, LINEAR, hits=0)
    (run,) = scheduler.handle(StageDone(0), 1.0)
    assert isinstance(run, Run)
    assert run.stage == 1
    assert len(run.requests) < len(begun)


@pytest.mark.parametrize(("newcomers", "stage"), [((), 2), ((20,), 0)])
def test_where_somebody_waits_all_are_weighed_at_any_boundary(newcomers: tuple[int, ...], stage: int) -> None:
    scheduler, _ = misses(FLAT, *(LINEAR,) * 4, hits=0)
    scheduler.handle(StageDone(0), 1.0)
    for number in newcomers:
        scheduler.handle(Arrived("net", 1e6, (number,), (number,)), 1.5)
    (run,) = scheduler.handle(StageDone(0), 2.0)
    assert isinstance(run, Run)
    assert run.stage == stage


@pytest.mark.parametrize("seconds", [0.1, 10.0])
@pytest.mark.parametrize(("gap", "count"), [(1.0, 4), (1.5, 2)])
def test_how_many_go_on_depends_on_the_share_of_its_time_that_a_worker_is_busy(
    seconds: float, gap: float, count: int
) -> None:
    """A worker that is a hundred times as quick, and asked a hundred times as often, decides alike."""
    curve = Curve((1, 16), (seconds, 12.0 * seconds))
    served = chain(STATIC, STATIC, curve=curve, max_batch=16, hit_rates=EARLY)
    model = lane_of(served, *[Request(number, "net", number, 1e3, gap * seconds * number) for number in range(60)])
    assert together(model, 1, 4, 4, 16, 59.5 * gap * seconds) == count
