"""What `lazy+` decides, by simulation of a few requests each. A stage takes one second unless said otherwise."""

from dataclasses import replace

import pytest

from latebind.batching.decisions import Launch
from latebind.batching.late import LazyPlus, quickest
from latebind.batching.requests import Models, Order, Request
from latebind.batching.workers import BatchTable, Worker
from latebind.domain.actions import Outcome
from latebind.domain.config import PolicyConfig
from latebind.domain.costs import Curve, at_any_length
from latebind.simulation.workloads import Arrival
from tests.batching.chains import DECODER, STATIC, Timeline, chain, config, ends, lane_of

LONG = 1e3


def plus(*, shed: bool = False) -> PolicyConfig:
    return PolicyConfig("lazy+", shed=shed)


def steep(gain: float) -> Curve:
    """Batches of 64 take 64 / gain times as long as one."""
    return Curve((1, 64), (1.0, 64.0 / gain))


def test_an_idle_worker_begins_at_once_with_all_that_wait() -> None:
    timeline = Timeline(config(plus(), chain(STATIC, max_batch=3)))
    timeline.run([Arrival(0, "net", LONG, 0), Arrival(0.5, "net", LONG, 0, rows=4)])
    assert timeline.ran == [(0, 0, (1,)), (1, 0, (2, 3, 4)), (2, 0, (5,))]


def test_the_earliest_deadline_goes_first() -> None:
    timeline = Timeline(config(plus(), chain(STATIC, max_batch=1)))
    timeline.run([Arrival(0, "net", LONG, 0), Arrival(0.2, "net", 100, 0), Arrival(0.4, "net", 10, 0)])
    assert [requests for _, _, requests in timeline.ran] == [(1,), (3,), (2,)]


def test_an_early_batch_is_joined_where_batches_are_cheap_and_not_where_they_are_not() -> None:
    calls = [Arrival(0, "net", LONG, 7), Arrival(0.5, "net", LONG, 7, rows=3)]
    flat = Timeline(config(plus(), chain(*(STATIC,) * 8)))
    flat.run(calls)
    assert flat.ran[1:3] == [(1, 0, (2, 3, 4)), (2, 1, (1, 2, 3, 4))]
    linear = Timeline(config(plus(), chain(*(STATIC,) * 8, curve=steep(1.0))))
    linear.run(calls)
    assert [requests for _, _, requests in linear.ran[:8]] == [(1,)] * 8


def test_a_batch_that_is_nearly_through_is_not_held_up() -> None:
    timeline = Timeline(config(plus(), chain(*(STATIC,) * 8)))
    timeline.run([Arrival(0, "net", LONG, 7, rows=4), Arrival(6.5, "net", LONG, 7)])
    assert [requests for _, _, requests in timeline.ran[:8]] == [(1, 2, 3, 4)] * 8


def test_a_decoder_is_joined_at_any_step_and_left_when_an_answer_is_complete() -> None:
    timeline = Timeline(config(plus(), chain(STATIC, DECODER, output_steps=(6,))))
    records = timeline.run([Arrival(0, "net", LONG, 1, outputs=6), Arrival(2.5, "net", LONG, 1, outputs=2)])
    assert timeline.ran[3:7] == [(3, 0, (2,)), (4, 1, (1, 2)), (5, 1, (1, 2)), (6, 1, (1,))]
    assert ends(records) == {1: 8, 2: 6}


JUMP = Curve((1, 2, 3, 8), (1.0, 1.0, 2.0, 2.0))  # behind two requests the next size is that of eight


def test_a_decoder_takes_no_more_than_its_steps_are_quick_for() -> None:
    """Two share its steps; a third would join at once, since reading costs by the request, but waits for a place."""
    model = chain(STATIC, DECODER, output_steps=(4,))
    costs = replace(model.costs, stages=at_any_length(Curve((1, 64), (1.0, 64.0)), JUMP))
    timeline = Timeline(config(plus(), replace(model, costs=costs)))
    timeline.run([Arrival(0, "net", LONG, 1, outputs=4, rows=2), Arrival(2.5, "net", LONG, 1, outputs=4)])
    assert timeline.ran[1:5] == [(at, 1, (1, 2)) for at in (2, 3, 4, 5)]
    assert timeline.ran[5] == (6, 0, (3,))


def test_an_idle_worker_begins_a_decoder_with_as_many_as_its_steps_are_quick_for() -> None:
    timeline = Timeline(config(plus(), chain(STATIC, DECODER, curve=JUMP, output_steps=(4,))))
    timeline.run([Arrival(0, "net", LONG, 1, outputs=4, rows=3)])
    assert timeline.ran[0] == (0, 0, (1, 2))


def test_short_work_of_another_model_passes_and_long_work_does_not() -> None:
    long, short = chain(*(STATIC,) * 20, name="long"), chain(STATIC, name="short")
    timeline = Timeline(config(plus(), long, short))
    records = timeline.run([Arrival(0, "long", LONG, 19), Arrival(0.5, "short", LONG, 0)])
    assert ends(records) == {1: 21, 2: 2}
    timeline = Timeline(config(plus(), long, short))
    records = timeline.run([Arrival(0, "short", LONG, 0), Arrival(0.5, "long", LONG, 19)])
    assert ends(records) == {1: 1, 2: 21}


def test_nobody_is_held_up_without_end() -> None:
    """Short requests come as fast as they can be answered; the long one loses no more than a quarter of its time."""
    long, short = chain(*(STATIC,) * 20, name="long"), chain(STATIC, name="short", max_batch=1)
    timeline = Timeline(config(plus(), long, short))
    calls = [Arrival(0, "long", LONG, 19), *(Arrival(0.5 + i, "short", LONG, 0) for i in range(40))]
    assert ends(timeline.run(calls))[1] <= 20 * 1.25 + 1


def test_a_batch_that_another_model_has_waited_for_is_joined_no_more() -> None:
    """The other model waits for 6 of 10 seconds; who comes then does not join, and the other model is next."""
    own, other = chain(STATIC, DECODER, name="own", output_steps=(9,)), chain(*(STATIC,) * 30, name="other")
    calls = [
        Arrival(0, "own", LONG, 1, outputs=12),
        Arrival(0.5, "other", LONG, 29),
        Arrival(8.5, "own", LONG, 1, outputs=9),
    ]
    records = ends(Timeline(config(plus(), own, other)).run(calls))
    assert (records[1], records[2]) == (13, 43)
    assert records[3] > 43


@pytest.mark.parametrize(("allowed", "outcome"), [(12.0, Outcome.EXPIRED), (13.0, Outcome.ANSWERED)])
def test_of_a_crowd_only_those_who_will_be_in_time_even_so_are_begun(allowed: float, outcome: Outcome) -> None:
    """The place is free at 1; with a long answer, and held up by a quarter of that, it takes until 12.25."""
    model = chain(STATIC, DECODER, max_batch=2, output_steps=(2, 8))
    calls = [Arrival(0, "net", allowed, 1, outputs=2), *(Arrival(0, "net", LONG, 1, outputs=2) for _ in range(4))]
    alone = Timeline(config(plus(shed=True), model)).run(calls[:1])
    assert alone[0].outcome is Outcome.ANSWERED
    crowd = {r.request: r.outcome for r in Timeline(config(plus(shed=True), model)).run([calls[1], *calls])}
    assert crowd[1] is outcome
    assert [outcome for request, outcome in crowd.items() if request != 1] == [Outcome.ANSWERED] * 5


def test_who_runs_a_network_once_is_given_up_only_when_a_quarter_more_is_too_much() -> None:
    """Three wait for two places when the worker is free at 2; a batch takes two seconds, and all are due at 4.8."""
    timeline = Timeline(config(plus(shed=True), chain(STATIC, STATIC, max_batch=2)))
    calls = [Arrival(0.0, "net", LONG, 1), *(Arrival(0.1, "net", 4.7, 1) for _ in range(3))]
    outcomes = {record.request: record.outcome for record in timeline.run(calls)}
    assert [outcomes[i] for i in range(4)] == [*[Outcome.ANSWERED] * 3, Outcome.EXPIRED]


def test_where_a_batch_of_all_would_be_late_smaller_ones_begin_and_nobody_is_shed_for_it() -> None:
    """At 1 five wait, due at 5.5: together they take 4.54 seconds, three of them 2.77, then two 1.89, or one 1."""
    timeline = Timeline(config(plus(shed=True), chain(STATIC, max_batch=8, curve=Curve((1, 8), (1.0, 7.2)))))
    calls = [Arrival(0.0, "net", LONG, 0), *(Arrival(0.5, "net", 5.0, 0) for _ in range(5))]
    outcomes = [record.outcome for record in timeline.run(calls)]
    assert [requests for _, _, requests in timeline.ran] == [(1,), (2, 3, 4), (5,)]
    assert outcomes == [*[Outcome.ANSWERED] * 5, Outcome.EXPIRED]


def begun(*deadlines: float, priority: int = 0) -> tuple[int, ...]:
    """Return who starts of those that wait at 0, the first with a priority; 1 to 8 take the model 1 to 4.5 seconds."""
    models = Models(Order.DEADLINE)
    requests = [Request(n, "net", n, due, 0.0, priority=0 if n else priority) for n, due in enumerate(deadlines)]
    lane_of(chain(STATIC, max_batch=8, curve=Curve((1, 8), (1.0, 4.5))), *requests, models=models)
    decision = LazyPlus(PolicyConfig("lazy+")).decide(Worker(models, BatchTable()), 0.0)
    assert isinstance(decision, Launch)
    return decision.requests


def test_a_batch_is_filled_with_those_who_can_await_it_and_passes_over_the_others() -> None:
    assert begun(1.5, 2.0, *[50.0] * 6) == (2, 3, 4, 5, 6, 7)


def test_who_has_a_priority_is_not_passed_over() -> None:
    assert begun(2.0, 50.0, 50.0, 50.0, 50.0, priority=1) == (0, 1)


@pytest.mark.parametrize(
    ("fixed", "waiting", "gap", "others", "size"),
    [
        (0.05, 2, 0.5, 0, 2),  # requests came in gaps of half a second; batches hardly gain
        (0.05, 8, 0.5, 0, 4),
        (0.05, 32, 0.5, 0, 8),
        (0.05, 8, 10.0, 0, 1),
        (0.05, 8, 10.0, 64, 4),  # those that wait for other models wait until all are through
        (0.0, 16, 1.0, 0, 1),  # a batch takes as long as its requests one by one
        (10.0, 16, 5.0, 0, 16),
    ],
)
def test_as_many_start_as_clear_the_queue_with_the_least_waiting(
    fixed: float, waiting: int, gap: float, others: int, size: int
) -> None:
    """A batch of b takes `fixed` + b seconds."""
    served = chain(STATIC, max_batch=16, curve=Curve((1, 16), (fixed + 1.0, fixed + 16.0)))
    model = lane_of(served, *[Request(number, "net", number, 1e9, gap * number) for number in range(waiting)])
    assert quickest(model, min(16, waiting), gap * (waiting - 1), others) == size
