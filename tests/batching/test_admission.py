"""Who is accepted, by the order in which the policy serves: what goes first, and who would be late for whom."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from latebind.batching.policy import make_policy
from latebind.batching.requests import Order
from latebind.domain.actions import Outcome, Reply
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.events import Arrived, StageDone
from latebind.scheduler import Scheduler
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival
from research.policies import BATCHING
from tests.models import served
from tests.residency.limited import with_pieces
from tests.test_scheduler import outcomes

BY_DEADLINE = [name for name in BATCHING if make_policy(PolicyConfig(BATCHING[name])).order is Order.DEADLINE]
BY_ARRIVAL = [name for name in BATCHING if name not in BY_DEADLINE]
ALL = [*BY_DEADLINE, *BY_ARRIVAL]


def models(*, hit_rates: dict[int, float] | None = None) -> tuple[ServedModel, ServedModel]:
    """Each takes 30 ms, one request after another."""
    bulk, web = (served(name, max_batch=1, hit_rates=hit_rates, max_queued=1000) for name in ("bulk", "web"))
    return bulk, web


def behind(
    count: int, policy: str, *, due: float = 60.0, workers: int = 1, hit_rates: dict[int, float] | None = None
) -> Scheduler:
    """So many requests of `bulk` have come at 0, and each worker has begun one of them."""
    scheduler = Scheduler(SchedulerConfig(models(hit_rates=hit_rates), workers, PolicyConfig(BATCHING[policy])))
    for number in range(count):
        assert not outcomes(scheduler.handle(Arrived("bulk", due, (number,), (number,)), 0.0))
    return scheduler


def refused(scheduler: Scheduler, event: Arrived, now: float = 0.0) -> bool:
    found = outcomes(scheduler.handle(event, now))
    scheduler.check()
    return set(found.values()) == {Outcome.REFUSED_LATE}


def asked(model: str, due: float, *requests: int, priority: int = 0) -> Arrived:
    return Arrived(model, due, requests, requests, priority=priority)


@pytest.mark.parametrize("policy", BY_DEADLINE)
@pytest.mark.parametrize("model", ["bulk", "web"])
@pytest.mark.parametrize("hit_rates", [{}, {0: 0.5}], ids=["no exits", "exits"])
@pytest.mark.parametrize("workers", [1, 2])
def test_requests_with_later_deadlines_do_not_stand_before_one(
    policy: str, model: str, hit_rates: dict[int, float], workers: int
) -> None:
    scheduler = behind(100, policy, workers=workers, hit_rates=hit_rates)
    assert not refused(scheduler, asked(model, 0.5, 200))


@pytest.mark.parametrize("policy", BY_ARRIVAL)
@pytest.mark.parametrize("model", ["bulk", "web"])
def test_where_requests_are_served_as_they_come_those_before_it_count(policy: str, model: str) -> None:
    scheduler = behind(100, policy)
    assert refused(scheduler, asked(model, 0.5, 200))
    assert not refused(scheduler, asked(model, 4.0, 201))


@pytest.mark.parametrize("policy", BY_DEADLINE)
@pytest.mark.parametrize("model", ["bulk", "web"])
def test_one_that_would_make_an_accepted_one_late_is_refused(policy: str, model: str) -> None:
    scheduler = behind(11, policy, due=0.33)  # ten wait for 30 ms each, and the last may start at 0.30 s
    assert not refused(scheduler, asked(model, 0.1, 200))  # it starts at 0.27 s, or at 0.3
    assert refused(scheduler, asked(model, 0.1, 201))
    assert not refused(scheduler, asked(model, 10.0, 202))  # it goes last


@pytest.mark.parametrize("policy", BY_DEADLINE)
def test_who_is_refused_for_another_hears_by_how_much_that_one_would_be_late(policy: str) -> None:
    scheduler = behind(11, policy, due=0.34)
    assert not refused(scheduler, asked("web", 0.1, 200))
    (reply,) = scheduler.handle(asked("web", 0.1, 201), 0.0)
    assert isinstance(reply, Reply)
    assert reply.outcome is Outcome.REFUSED_LATE
    assert reply.slack == pytest.approx(-0.02)


@pytest.mark.parametrize("policy", BY_DEADLINE)
def test_those_who_are_late_in_any_case_keep_nobody_out(policy: str) -> None:
    tiny = served("tiny", seconds=0.001, max_batch=1)
    scheduler = Scheduler(SchedulerConfig((*models(), tiny), 1, PolicyConfig(BATCHING[policy])))
    for number in range(11):
        scheduler.handle(asked("bulk", 0.37, number), 0.0)
    now = 0.2  # the first was held up: of the others the fifth has 20 ms to spare, and the sixth will be late
    assert not refused(scheduler, asked("tiny", now + 0.01, 200), now)


@pytest.mark.parametrize("policy", BY_DEADLINE)
def test_all_rows_of_a_call_count_against_those_behind_it(policy: str) -> None:
    scheduler = behind(11, policy, due=0.38)
    assert refused(scheduler, asked("web", 0.3, 200, 201, 202))
    assert not refused(scheduler, asked("web", 0.3, 203, 204))


@pytest.mark.parametrize("policy", ALL)
def test_a_priority_goes_before_others_of_all_models(policy: str) -> None:
    scheduler = behind(10, policy, due=5.0)
    for number in range(10, 20):
        assert not refused(scheduler, asked("web", 9.0, number), 0.001)
    assert refused(scheduler, asked("bulk", 0.1, 30), 0.001) is (policy in BY_ARRIVAL)
    assert not refused(scheduler, asked("bulk", 0.1, 31, priority=2), 0.001)
    assert not refused(scheduler, asked("web", 0.1, 32, priority=1), 0.001)
    assert refused(scheduler, asked("web", 0.05, 33, priority=2), 0.001)  # behind the other two


@pytest.mark.parametrize("policy", ALL)
def test_requests_start_in_the_order_that_admission_counts_on(policy: str) -> None:
    """Of three models, with priorities, while others come."""
    names = ("a", "b", "c")
    every = tuple(served(name, stages=1, max_batch=1) for name in names)
    scheduler = Scheduler(SchedulerConfig(every, 1, PolicyConfig(BATCHING[policy])))
    coming = [(names[i * i % 3], 50.0 + (i * 37) % 61, (i * 7) % 5 % 3) for i in range(60)]
    for number, (model, due, priority) in enumerate(coming):
        now = 0.01 * number
        scheduler.handle(Arrived(model, due, (number,), (number,), priority=priority), now)
        scheduler.check()
        if number % 3 == 2:
            waiting = {i: scheduler._live[i].turn for lane in scheduler._lanes.values() for i in lane.queue}
            scheduler.handle(StageDone(0), now)
            (started,) = waiting.keys() - {i for lane in scheduler._lanes.values() for i in lane.queue}
            assert started == min(waiting, key=waiting.__getitem__)


def played(calls: list[Arrival], policy: str, *, shed: bool) -> list[Record]:
    """Two models of one stage and one row, which take 1 and 2 s; records are in the order of the calls."""
    both = tuple(served(name, stages=1, seconds=took, max_batch=1) for name, took in (("a", 1.0), ("b", 2.0)))
    config = SchedulerConfig(both, 1, PolicyConfig(BATCHING[policy], shed=shed))
    return sorted(Simulator(config).run(calls), key=lambda record: record.request)


CALL = st.tuples(st.integers(0, 5), st.sampled_from("ab"), st.integers(2, 40), st.sampled_from((0, 0, 0, 1, 2)))


@pytest.mark.parametrize("policy", ["late", "lazy+", "graph", "lazy"])
@given(st.lists(CALL, max_size=30))
def test_nobody_is_refused_whom_the_policy_could_have_answered_with_all_others_in_time(
    policy: str, drawn: list[tuple[int, str, int, int]]
) -> None:
    """A refused request is played once more beside all that were accepted: it is late then, or another one is.

    Said of draws in which all that were accepted are answered. Where one expires, a policy has passed it over because
    it was too near its deadline for a run that takes half as long again, which it does not do where nothing is shed.
    """
    calls, time = list[Arrival](), 0.0
    for gap, model, allowed, priority in drawn:
        time += 0.5 * gap
        calls.append(Arrival(time, model, 0.25 + 0.5 * allowed, 0, priority=priority))
    ends = played(calls, policy, shed=True)
    assume(all(end.outcome is not Outcome.EXPIRED for end in ends))
    late = [end.request for end in ends if end.outcome is Outcome.REFUSED_LATE]
    for one in {*late[:1], *late[-1:]}:
        beside = [call for number, call in enumerate(calls) if number not in late or number == one]
        taken = played(beside, policy, shed=False)
        assert any(end.latency > call.allowed for end, call in zip(taken, beside, strict=True))


def test_of_requests_that_are_held_for_their_model_only_those_before_one_count() -> None:
    """It takes a second to load, and a request 30 ms."""
    model = with_pieces(served(stages=1, seconds=0.03, max_batch=1), (10,), seconds=0.1)
    memory = ResidencyConfig(10)
    scheduler = Scheduler(SchedulerConfig((model,), 1, PolicyConfig("late"), residency=memory))
    for number in range(20):
        scheduler.handle(Arrived("net", 60.0, (number,), (number,)), 0.0)
    assert not refused(scheduler, asked("net", 1.1, 20))
    assert not refused(scheduler, asked("net", 1.1, 21))
    assert outcomes(scheduler.handle(asked("net", 1.05, 22), 0.0)) == {}
    assert outcomes(scheduler.handle(asked("net", 1.02, 23), 0.0)) == {23: Outcome.REFUSED_LOADING}
