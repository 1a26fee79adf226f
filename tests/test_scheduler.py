"""The scheduler, event by event: what goes in and the list of actions that comes out."""

import pytest
from msgspec.structs import replace

from latebind.batching.costs import MOVED
from latebind.domain.actions import Action, Outcome, Reply, Run, WakeAt
from latebind.domain.errors import IllegalEvent
from latebind.domain.events import Arrived, Cancelled, Exited, StageDone, StageFailed, Woke
from latebind.scheduler import Scheduler
from tests.models import config, served


def arrived(*requests: int, model: str = "net", deadline: float = 10.0) -> Arrived:
    return Arrived(model, deadline, requests, requests)


def run(stage: int, *requests: int, model: str = "net", worker: int = 0) -> Run:
    return Run(worker, model, stage, requests, requests)


def outcomes(actions: list[Action]) -> dict[int, Outcome]:
    return {action.request: action.outcome for action in actions if isinstance(action, Reply)}


def test_a_request_on_an_idle_worker_starts_at_once() -> None:
    assert Scheduler(config()).handle(arrived(1), 0.0) == [run(0, 1)]


def test_a_request_runs_stage_by_stage_and_is_answered_after_the_last() -> None:
    scheduler = Scheduler(config(served(stages=2)))
    scheduler.handle(arrived(1), 1.0)
    assert scheduler.handle(StageDone(0), 1.5) == [run(1, 1)]
    assert scheduler.handle(StageDone(0), 2.0) == [Reply(1, "net", Outcome.ANSWERED, 1, 0.0, 1.0)]
    assert scheduler.stats() == {"accepted": 1, "queued": 0, "running": 0, "ended": 1}


def test_calls_that_come_together_run_as_one_batch() -> None:
    scheduler = Scheduler(config())
    assert scheduler.handle(replace(arrived(1), more=True), 0.0) == []
    assert scheduler.handle(arrived(2, 3), 0.0) == [run(0, 1, 2, 3)]


def test_whoever_came_with_a_call_that_is_refused_runs_without_it() -> None:
    scheduler = Scheduler(config())
    scheduler.handle(replace(arrived(1), more=True), 0.0)
    refused, begun = scheduler.handle(arrived(2, deadline=-1.0), 0.0)
    assert isinstance(refused, Reply)
    assert begun == run(0, 1)


def test_requests_that_come_meanwhile_form_the_next_batch() -> None:
    scheduler = Scheduler(config(served(stages=1)))
    scheduler.handle(arrived(1), 0.0)
    assert scheduler.handle(arrived(2), 0.1) == []
    assert scheduler.handle(arrived(3), 0.2) == []
    assert scheduler.handle(StageDone(0), 0.3) == [
        Reply(1, "net", Outcome.ANSWERED, 0, 0.0, 0.3),
        run(0, 2, 3),
    ]


def test_a_member_that_exits_is_answered_at_once_and_the_others_go_on() -> None:
    scheduler = Scheduler(config(served(hit_rates={0: 0.5})))
    scheduler.handle(arrived(1, 2, 3), 0.0)
    assert scheduler.handle(StageDone(0, exited=(2,)), 0.01) == [
        Reply(2, "net", Outcome.ANSWERED, 0, 0.0, 0.01),
        run(1, 1, 3),
    ]


def test_two_workers_run_two_batches_at_once() -> None:
    scheduler = Scheduler(config(workers=2))
    assert scheduler.handle(arrived(1), 0.0) == [run(0, 1)]
    assert scheduler.handle(arrived(2), 0.0) == [run(0, 2, worker=1)]


def test_a_window_holds_a_batch_back_until_it_has_passed() -> None:
    scheduler = Scheduler(config(window=0.005))
    assert scheduler.handle(arrived(1), 1.0) == [WakeAt(1.005)]
    assert scheduler.handle(arrived(2), 1.001) == []
    assert scheduler.handle(Woke(), 1.005) == [run(0, 1, 2)]


def test_a_full_batch_does_not_wait_for_its_window() -> None:
    scheduler = Scheduler(config(window=1.0, max_batch=2))
    scheduler.handle(arrived(1), 0.0)
    assert scheduler.handle(arrived(2), 0.001) == [run(0, 1, 2)]


def test_a_late_or_doubled_wake_up_is_harmless() -> None:
    scheduler = Scheduler(config(window=0.005))
    scheduler.handle(arrived(1), 0.0)
    assert scheduler.handle(Woke(), 0.009) == [run(0, 1)]
    assert scheduler.handle(Woke(), 0.010) == []


def test_who_is_let_past_and_catches_up_counts_as_refill_preemption_and_merge() -> None:
    scheduler = Scheduler(config(served(per_row=0.0), policy="lazy"))
    scheduler.handle(arrived(1), 0.0)
    scheduler.handle(arrived(2), 0.005)
    assert scheduler.tallies() == {"net": {"merges": 0, "preemptions": 0, "refills": 0}}
    scheduler.handle(StageDone(0), 0.01)
    assert scheduler.tallies() == {"net": {"merges": 0, "preemptions": 1, "refills": 1}}
    assert scheduler.handle(StageDone(0), 0.02) == [run(1, 1, 2)]
    assert scheduler.tallies() == {"net": {"merges": 1, "preemptions": 1, "refills": 1}}


def test_what_runs_is_not_stopped_for_a_priority() -> None:
    scheduler = Scheduler(config(served(stages=2), max_batch=1))
    scheduler.handle(arrived(1), 0.0)
    assert scheduler.handle(Arrived("net", 10.0, (2,), (2,), priority=1), 0.0) == []
    assert scheduler.handle(StageDone(0), 0.01) == [run(1, 1)]


def test_a_cancelled_request_leaves_the_queue_at_once() -> None:
    scheduler = Scheduler(config())
    scheduler.handle(arrived(1), 0.0)
    scheduler.handle(arrived(2), 0.0)
    assert scheduler.handle(Cancelled(2), 0.5) == [Reply(2, "net", Outcome.CANCELLED, -1, 0.5, 0.0)]


def test_a_cancelled_request_leaves_its_batch_at_the_next_boundary() -> None:
    scheduler = Scheduler(config())
    scheduler.handle(arrived(1, 2), 0.0)
    assert scheduler.handle(Cancelled(1), 0.001) == []
    assert scheduler.handle(Cancelled(1), 0.002) == []  # told twice
    actions = scheduler.handle(StageDone(0), 0.01)
    assert outcomes(actions) == {1: Outcome.CANCELLED}
    assert actions[-1] == run(1, 2)
    scheduler.check()


def test_a_cancelled_request_that_rests_leaves_at_once_and_others_of_its_batch_stay() -> None:
    scheduler = Scheduler(config(served(stages=8), policy="lazy+"))
    scheduler.handle(arrived(1, 2), 0.0)
    scheduler.handle(arrived(3), 0.005)
    assert scheduler.handle(StageDone(0), 0.01) == [run(0, 3)]  # two rest behind the first stage
    assert scheduler.handle(Cancelled(1), 0.015) == [Reply(1, "net", Outcome.CANCELLED, 0, 0.0, 0.015, 9.92)]
    scheduler.check()
    assert scheduler.handle(StageDone(0), 0.02) == [run(1, 2, 3)]


def test_cancelling_a_request_that_has_ended_does_nothing() -> None:
    assert Scheduler(config()).handle(Cancelled(7), 0.0) == []


@pytest.mark.parametrize("policy", ["graph", "lazy", "late"])
@pytest.mark.parametrize("poisoned", [(), (3,), (1, 4), (1, 2, 3, 4)])
def test_of_a_batch_whose_stage_raises_only_those_fail_that_raise_alone(policy: str, poisoned: tuple[int, ...]) -> None:
    scheduler = Scheduler(config(served(stages=3), policy=policy))
    actions, runs, ended = scheduler.handle(arrived(1, 2, 3, 4), 0.0), list[Run](), dict[int, Outcome]()
    scheduler.handle(arrived(5), 0.0)
    for moment in range(1, 30):
        ended |= outcomes(actions)
        runs += [action for action in actions if isinstance(action, Run)]
        if len(ended) == 5:
            break
        raises = runs[-1].stage == 1 and (set(poisoned) & set(runs[-1].requests) or runs[-1].requests == (1, 2, 3, 4))
        actions = scheduler.handle(StageFailed(0) if raises else StageDone(0), moment / 1000)
        scheduler.check()
    assert ended == {i: Outcome.FAILED if i in poisoned else Outcome.ANSWERED for i in range(1, 6)}
    assert len([one for one in runs if one.stage == 1 and 5 not in one.requests]) <= 2 * 4 - 1


def test_halves_of_a_batch_that_raised_go_on_together() -> None:
    scheduler = Scheduler(config(served(stages=3)))
    scheduler.handle(arrived(1, 2, 3), 0.0)
    assert scheduler.handle(StageFailed(0), 0.01) == [run(0, 1, 2)]
    assert scheduler.handle(StageDone(0), 0.02) == [run(0, 3)]
    assert scheduler.handle(StageDone(0), 0.03) == [run(1, 1, 2, 3)]
    scheduler.check()


def test_nobody_joins_a_half_before_it_has_run() -> None:
    scheduler = Scheduler(config(served(stages=3), policy="late"))
    scheduler.handle(arrived(1, 2), 0.0)
    scheduler.handle(arrived(3), 0.0)
    assert scheduler.handle(StageFailed(0), 0.01) == [run(0, 1)]
    assert scheduler.handle(StageDone(0), 0.02) == [run(0, 2)]
    actions = scheduler.handle(StageFailed(0), 0.03)
    assert outcomes(actions) == {2: Outcome.FAILED}
    assert actions[-1] == run(0, 3)


def test_who_leaves_or_is_late_while_a_batch_is_tried_by_halves_is_not_run_again() -> None:
    scheduler = Scheduler(config(served(stages=3)))
    scheduler.handle(arrived(1, 2), 0.0)
    scheduler.handle(Cancelled(2), 0.005)
    assert outcomes(scheduler.handle(StageFailed(0), 0.01)) == {2: Outcome.CANCELLED}
    assert outcomes(scheduler.handle(StageFailed(0), 0.02)) == {1: Outcome.FAILED}
    scheduler.handle(arrived(3, 4), 1.0)
    assert scheduler.handle(StageFailed(0), 1.01) == [run(0, 3)]
    assert outcomes(scheduler.handle(Cancelled(4), 1.015)) == {4: Outcome.CANCELLED}
    assert scheduler.handle(StageDone(0), 1.02) == [run(1, 3)]
    scheduler.handle(arrived(5, 6, deadline=2.0), 1.03)
    scheduler.handle(StageDone(0), 1.04)
    scheduler.check()


def test_who_is_left_in_a_batch_that_raised_is_not_to_blame_for_one_who_has_left() -> None:
    scheduler = Scheduler(config(served(hit_rates={0: 0.5})))
    scheduler.handle(arrived(1, 2), 0.0)
    scheduler.handle(StageDone(0), 0.01)
    assert outcomes(scheduler.handle(Exited(0, 0, (2,)), 0.013)) == {2: Outcome.ANSWERED}
    assert scheduler.handle(StageFailed(0), 0.02) == [run(1, 1)]
    assert outcomes(scheduler.handle(StageFailed(0), 0.03)) == {1: Outcome.FAILED}
    scheduler.check()


@pytest.mark.parametrize(
    "event",
    [
        arrived(1),
        arrived(9, model="stranger"),
        StageDone(1),
        StageDone(-1),
        StageDone(0, exited=(99,)),
        StageFailed(5),
        Exited(1, 0, (1,)),
    ],
)
def test_an_illegal_event_raises_and_changes_nothing(
    event: Arrived | StageDone | StageFailed | Exited,
) -> None:
    scheduler = Scheduler(config())
    scheduler.handle(arrived(1, 2), 0.0)
    before = scheduler.stats()
    with pytest.raises(IllegalEvent):
        scheduler.handle(event, 0.1)
    assert scheduler.stats() == before
    assert scheduler.handle(StageDone(0), 0.2) == [run(1, 1, 2)]


def test_a_hit_aside_is_answered_while_its_stage_runs_and_leaves_the_batch_at_the_boundary() -> None:
    scheduler = Scheduler(config(served(hit_rates={0: 0.5})))
    scheduler.handle(arrived(1, 2), 0.0)
    assert scheduler.handle(StageDone(0), 0.01) == [run(1, 1, 2)]
    assert scheduler.handle(Exited(0, 0, (2,)), 0.013) == [Reply(2, "net", Outcome.ANSWERED, 0, 0.0, 0.013)]
    assert scheduler.handle(StageDone(0), 0.02) == [run(2, 1)]
    scheduler.check()


def test_a_hit_aside_that_comes_after_the_end_of_the_network_changes_nothing() -> None:
    scheduler = Scheduler(config(served(stages=2, hit_rates={0: 0.5})))
    scheduler.handle(arrived(1), 0.0)
    scheduler.handle(arrived(2), 0.001)
    scheduler.handle(StageDone(0), 0.01)
    assert outcomes(scheduler.handle(StageDone(0), 0.02)) == {1: Outcome.ANSWERED}
    assert scheduler.handle(Exited(0, 0, (1,)), 0.021) == []
    assert scheduler.stats() == {"accepted": 2, "queued": 0, "running": 1, "ended": 1}


def test_who_leaves_where_is_learned_from_who_does() -> None:
    scheduler = Scheduler(config(served(hit_rates={0: 0.9})))
    for number in range(400):
        scheduler.handle(arrived(number, deadline=1e9), float(number))
        for after in (0.01, 0.02, 0.03):  # through all stages
            scheduler.handle(StageDone(0), number + after)
    assert scheduler.outlooks(["net"], 500.0)["net"].chances == pytest.approx((0.1, 0.9), abs=MOVED)


def test_where_nobody_leaves_any_more_who_would_have_to_is_refused() -> None:
    scheduler = Scheduler(config(served(hit_rates={0: 0.9}), policy="late"))
    assert outcomes(scheduler.handle(arrived(0, deadline=0.015), 0.0)) == {}
    now = 0.0
    for number in range(1, 4000):
        now += 0.01
        actions = scheduler.handle(StageDone(0), now)
        if not any(isinstance(action, Run) for action in actions):
            scheduler.handle(arrived(number, deadline=1e9), now)
    while any(isinstance(action, Run) for action in actions):
        now += 0.01
        actions = scheduler.handle(StageDone(0), now)
    assert outcomes(scheduler.handle(arrived(9999, deadline=now + 0.015), now)) == {9999: Outcome.REFUSED_LATE}
