"""The scheduler and time: who is refused on arrival, dropped while waiting or told on the way, and who is answered."""

from itertools import count, pairwise

import pytest

from latebind.domain.actions import Action, Outcome, Reply, Run, WakeAt
from latebind.domain.events import Cancelled, StageDone, Woke
from latebind.scheduler import RETRY, Scheduler
from tests.models import config, served
from tests.test_scheduler import arrived, outcomes, run


def test_a_request_past_the_bound_of_the_queue_is_refused() -> None:
    scheduler = Scheduler(config(served(max_queued=1)))
    scheduler.handle(arrived(1), 0.0)
    scheduler.handle(arrived(2), 0.0)
    assert outcomes(scheduler.handle(arrived(3), 0.0)) == {3: Outcome.REFUSED_FULL}


def test_a_deadline_shorter_than_the_full_depth_is_refused_on_arrival() -> None:
    scheduler = Scheduler(config(served(stages=3, seconds=0.01)))
    assert outcomes(scheduler.handle(arrived(1, deadline=0.029), 0.0)) == {1: Outcome.REFUSED_LATE}
    assert scheduler.handle(arrived(2, deadline=0.031), 0.0) == [run(0, 2)]


def test_a_deadline_that_the_queue_ahead_makes_impossible_is_refused_on_arrival() -> None:
    scheduler = Scheduler(config(served(stages=1, seconds=0.01), max_batch=1))
    for request in range(10):
        scheduler.handle(arrived(request), 0.0)
    # Nine wait for 0.01 s each.
    assert outcomes(scheduler.handle(arrived(10, deadline=0.095), 0.0)) == {10: Outcome.REFUSED_LATE}
    assert outcomes(scheduler.handle(arrived(11, deadline=0.105), 0.0)) == {}


def test_the_work_ahead_counts_as_launches_have_been_seen_to_take() -> None:
    scheduler = Scheduler(config(served(stages=1, seconds=0.01), max_batch=1))
    now = 0.0
    for request in range(300):  # each takes twice what the profile says
        scheduler.handle(arrived(request, deadline=now + 10.0), now)
        now += 0.02
        scheduler.handle(StageDone(0), now)
    for request in range(300, 310):
        scheduler.handle(arrived(request, deadline=now + 10.0), now)
    scheduler.check()
    # Nine wait for 0.02 s each.
    assert outcomes(scheduler.handle(arrived(310, deadline=now + 0.19), now)) == {310: Outcome.REFUSED_LATE}
    assert outcomes(scheduler.handle(arrived(311, deadline=now + 0.21), now)) == {}


def test_who_gets_late_while_resting_leaves_at_the_next_boundary_and_others_of_its_batch_stay() -> None:
    scheduler = Scheduler(config(served(stages=8), policy="lazy+"))
    scheduler.handle(arrived(1, deadline=0.5), 0.0)
    scheduler.handle(arrived(2), 0.0)
    scheduler.handle(StageDone(0), 0.01)
    scheduler.handle(arrived(3), 0.015)
    assert scheduler.handle(StageDone(0), 0.02) == [run(0, 3)]  # two rest behind the first stage
    actions = scheduler.handle(StageDone(0), 0.6)
    scheduler.check()
    assert actions == [Reply(1, "net", Outcome.EXPIRED, 0, 0.0, 0.6, 0.42), run(1, 2, 3)]


def slow_for_a_while(policy: str, *, beside: bool, cost: float, allowed: float, slow: float) -> float:
    """Two workers, one of them always busy with another model where somebody is `beside`: requests for `net` come ten
    times a second. From 10 to 20 s launches take `slow` times as long. Returns when the first is answered after that.
    """
    models = served(stages=1, seconds=cost, max_batch=1), served("other", stages=1, seconds=1.0, max_batch=1)
    scheduler = Scheduler(config(*models, workers=2, policy=policy))
    ends: dict[int, float] = {}
    now, coming = 0.0, 0.0
    numbers = count()

    def send(model: str, time: float) -> None:
        act(scheduler.handle(arrived(next(numbers), model=model, deadline=now + time), now))

    def act(actions: list[Action]) -> bool:
        for action in actions:
            if isinstance(action, Run):
                took = (cost if action.model == "net" else 1.0) * (slow if 10.0 < now < 20.0 else 1.0)
                ends[action.worker] = now + took
        ended = [action for action in actions if isinstance(action, Reply)]
        if beside and "other" in [reply.model for reply in ended]:
            send("other", 1000.0)
        return any(reply.model == "net" and reply.outcome is Outcome.ANSWERED for reply in ended)

    if beside:
        send("other", 1000.0)
    while now < 40.0:
        worker = min(ends, key=ends.__getitem__, default=-1)
        if worker >= 0 and ends[worker] <= coming:
            now = ends.pop(worker)
            if act(scheduler.handle(StageDone(worker), now)) and now > 20.0:
                return now
        else:
            now, coming = coming, coming + 0.1
            send("net", allowed)
    return now


@pytest.mark.parametrize("policy", ["late", "lazy+", "lazy", "graph"])
@pytest.mark.parametrize("beside", [False, True])
@pytest.mark.parametrize(("cost", "allowed", "slow"), [(0.02, 0.1, 6.0), (0.02, 0.03, 50.0), (0.3, 0.4, 2.0)])
def test_a_model_is_answered_within_a_second_after_the_machine_was_slow(
    policy: str, beside: bool, cost: float, allowed: float, slow: float
) -> None:
    assert slow_for_a_while(policy, beside=beside, cost=cost, allowed=allowed, slow=slow) < 21.0


def test_what_no_launch_can_meet_is_tried_ever_more_rarely() -> None:
    scheduler = Scheduler(config(served(stages=1, seconds=0.2)))
    tried: list[float] = []
    for number in range(10_000):
        now = 0.1 * number
        if isinstance(scheduler.handle(arrived(number, deadline=now + 0.05), now)[0], Run):
            tried.append(now)
            scheduler.handle(StageDone(0), now + 0.09)
    waited = [later - sooner for sooner, later in pairwise(tried)]
    assert 0.4 < min(waited) < 0.8
    assert 9.9 < max(waited) < 10.2  # no model is refused for longer by an estimate alone
    assert len(tried) < 200


def test_a_request_for_which_an_estimate_is_doubted_is_itself_accepted() -> None:
    scheduler = Scheduler(config(served(stages=1, seconds=0.2)))
    assert outcomes(scheduler.handle(arrived(1, deadline=0.1), 0.0)) == {1: Outcome.REFUSED_LATE}
    assert scheduler.handle(arrived(2, deadline=RETRY + 0.1), RETRY) == [run(0, 2)]


def test_an_estimate_with_which_requests_were_accepted_meanwhile_is_not_doubted_at_once() -> None:
    scheduler = Scheduler(config(served(stages=1, seconds=0.2)))
    assert outcomes(scheduler.handle(arrived(1, deadline=0.1), 0.0)) == {1: Outcome.REFUSED_LATE}
    assert scheduler.handle(arrived(2), 0.1) == [run(0, 2)]
    scheduler.handle(StageDone(0), 0.3)
    assert outcomes(scheduler.handle(arrived(3, deadline=5.1), 5.0)) == {3: Outcome.REFUSED_LATE}


def test_a_model_is_doubted_only_where_its_own_estimate_refuses() -> None:
    scheduler = Scheduler(config(served("a", stages=1), served("b", stages=1, seconds=5.0, max_batch=1), max_batch=1))
    scheduler.handle(arrived(1, model="b"), 0.0)
    scheduler.handle(arrived(2, model="b"), 0.0)
    for number in range(3, 40):  # one of 5 s is served first, whatever `a` takes
        now = 0.1 * number
        late = outcomes(scheduler.handle(arrived(number, model="a", deadline=now + 1.0), now))
        assert late == {number: Outcome.REFUSED_LATE}
    assert not scheduler._lanes["a"].estimate.doubted


def test_a_reply_tells_what_its_request_had_to_spare_behind_those_who_waited() -> None:
    scheduler = Scheduler(config(served(stages=2), max_batch=1))
    scheduler.handle(arrived(1), 0.0)
    scheduler.handle(arrived(2, deadline=0.05), 0.0)
    (late,) = scheduler.handle(arrived(3, deadline=0.025), 0.0)
    assert isinstance(late, Reply)
    assert late.slack == pytest.approx(-0.015)  # itself and the one before it
    (gone,) = scheduler.handle(Cancelled(2), 0.01)
    assert isinstance(gone, Reply)
    assert gone.slack == pytest.approx(0.03)


def test_who_can_still_be_in_time_to_the_moment_runs_and_who_cannot_is_dropped() -> None:
    scheduler = Scheduler(config(served(stages=1, seconds=1.0)))
    scheduler.handle(arrived(1), 0.0)
    scheduler.handle(arrived(2, deadline=2.0), 0.25)
    scheduler.handle(arrived(3, deadline=1.75), 0.25)
    actions = scheduler.handle(StageDone(0), 1.0)
    assert outcomes(actions) == {1: Outcome.ANSWERED, 3: Outcome.EXPIRED}
    assert run(0, 2) in actions


def test_a_queued_request_is_told_as_soon_as_it_is_too_late() -> None:
    scheduler = Scheduler(config(served(stages=1, seconds=0.01), window=1.0))
    (wake,) = scheduler.handle(arrived(1, deadline=0.05), 0.0)
    assert isinstance(wake, WakeAt)
    assert 0.04 < wake.time < 0.0401
    assert outcomes(scheduler.handle(Woke(), wake.time)) == {1: Outcome.EXPIRED}


def test_a_running_request_past_its_deadline_leaves_at_the_next_boundary() -> None:
    scheduler = Scheduler(config())
    scheduler.handle(arrived(1, deadline=0.05), 0.0)
    assert outcomes(scheduler.handle(StageDone(0), 0.06)) == {1: Outcome.EXPIRED}


def test_an_answer_that_is_there_is_sent_even_past_its_deadline() -> None:
    scheduler = Scheduler(config(served(stages=1)))
    scheduler.handle(arrived(1, deadline=0.05), 0.0)
    assert outcomes(scheduler.handle(StageDone(0), 0.06)) == {1: Outcome.ANSWERED}
