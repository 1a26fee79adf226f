"""What every batching policy keeps to, whatever it is: a new one is in this test by its line in BATCHING."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.batching.decisions import GoOn, Launch, Wait
from latebind.batching.policy import make_policy
from latebind.batching.requests import Models, Order, Request
from latebind.batching.workers import BatchTable, Worker
from latebind.domain.actions import Run
from latebind.domain.config import PolicyConfig, SchedulerConfig
from latebind.domain.errors import ConfigError
from latebind.domain.events import Arrived, Cancelled, Event, StageDone
from latebind.scheduler import Scheduler
from research.policies import BATCHING
from tests.batching.chains import lane_of
from tests.models import served

PRIORITIES = st.sampled_from((0, 0, 0, 1, 2, 255))
ARRIVALS = st.lists(st.tuples(st.floats(0.0, 1.0), PRIORITIES), max_size=12).map(sorted)


def waiting(order: Order, arrivals: dict[str, list[tuple[float, int]]], *, due: float = 9.0) -> Worker:
    """A worker without work; by model, requests with these arrivals and priorities wait."""
    models = Models(order)
    for name, each in arrivals.items():
        requests = [Request(i, name, i, since + due, since, priority=rank) for i, (since, rank) in enumerate(each)]
        lane_of(served(name, max_batch=5), *requests, models=models)
    return Worker(models, BatchTable())


@pytest.mark.parametrize("name", BATCHING)
@given(
    first=ARRIVALS, second=ARRIVALS, max_batch=st.integers(0, 9), window=st.floats(0.0, 0.5), pause=st.floats(0.0, 1.0)
)
def test_a_policy_keeps_to_its_contract(
    name: str,
    first: list[tuple[float, int]],
    second: list[tuple[float, int]],
    max_batch: int,
    window: float,
    pause: float,
) -> None:
    policy = make_policy(PolicyConfig(BATCHING[name], max_batch, window))
    if not first and not second:
        return
    worker = waiting(policy.order, {"a": first, "b": second})
    now = max(first + second)[0] + pause
    decision = policy.decide(worker, now)
    # 1. The same view at the same time gives the same decision.
    assert policy.decide(worker, now) == decision
    if isinstance(decision, Wait):
        # 2. It waits for a time to come, and by then it no longer waits.
        assert decision.until > now
        assert isinstance(policy.decide(worker, decision.until), Launch)
        return
    # 3. With nothing begun it has nothing to go on with.
    assert not isinstance(decision, GoOn)
    model = worker.models.by_name[decision.model]
    # 4. It launches someone, nobody twice, only who waits, no more than its own limit and the model's.
    assert 1 <= len(decision.requests) <= policy.batch_limit(model) <= model.spec.max_batch
    assert len(set(decision.requests)) == len(decision.requests)
    assert set(decision.requests) <= set(model.queue)
    # 5. Nobody is left out for one of a later priority.
    ranks = {number: request.priority or 256 for number, request in model.queue.items()}
    left_out = [ranks[number] for number in ranks.keys() - set(decision.requests)]
    assert max(ranks[number] for number in decision.requests) <= min(left_out, default=256)


@pytest.mark.parametrize("name", BATCHING)
def test_a_worker_without_work_begins_somebody_even_where_all_will_be_late(name: str) -> None:
    policy = make_policy(PolicyConfig(BATCHING[name], window=0.0, shed=False))
    assert isinstance(policy.decide(waiting(policy.order, {"a": [(0.0, 0), (0.0, 0)]}, due=1e-6), 0.0), Launch)


@pytest.mark.parametrize("name", BATCHING)
@pytest.mark.parametrize("first", ["a", "b"])
def test_of_two_models_alike_that_begins_whose_oldest_has_waited_longest(name: str, first: str) -> None:
    policy = make_policy(PolicyConfig(BATCHING[name], window=0.0))
    came = {model: [(0.0 if model == first else 0.5, 0)] for model in ("a", "b")}
    decision = policy.decide(waiting(policy.order, came), 0.5)
    assert isinstance(decision, Launch)
    assert decision.model == first


@pytest.mark.parametrize("name", BATCHING)
@pytest.mark.parametrize("hit_rates", [{}, {0: 0.3}], ids=["no exits", "exits"])
def test_of_those_who_wait_the_first_priority_starts_first(name: str, hit_rates: dict[int, float]) -> None:
    model = served(stages=2, max_batch=1, hit_rates=hit_rates)
    scheduler = Scheduler(SchedulerConfig((model,), policy=PolicyConfig(BATCHING[name])))
    starts: list[int] = []
    coming = [Arrived("net", 9.0 + i, (i,), (i,), priority=priority) for i, priority in enumerate((0, 0, 9, 1, 0, 1))]
    events: list[Event] = [*coming, *[StageDone(0)] * 2 * len(coming)]
    for step, event in enumerate(events):
        actions = scheduler.handle(event, 0.001 * step)
        scheduler.check()
        starts += [i for action in actions if isinstance(action, Run) and not action.stage for i in action.requests]
    assert starts == [0, 3, 5, 2, 1, 4]


@pytest.mark.parametrize("name", BATCHING)
@pytest.mark.parametrize("hit_rates", [{}, {0: 0.3}], ids=["no exits", "exits"])
@pytest.mark.parametrize("max_batch", [1, 4])
def test_whoever_comes_behind_clients_that_have_all_left_begins_at_the_next_boundary(
    name: str, hit_rates: dict[int, float], max_batch: int
) -> None:
    model = served(stages=8, max_batch=max_batch, hit_rates=hit_rates)
    scheduler = Scheduler(SchedulerConfig((model,), policy=PolicyConfig(BATCHING[name])))
    scheduler.handle(Arrived("net", 9.0, (1, 2, 3), (1, 2, 3)), 0.0)
    scheduler.handle(Arrived("net", 9.0, (4, 5, 6), (4, 5, 6)), 0.005)
    scheduler.handle(StageDone(0), 0.01)  # some policies let the later three past the first
    for leaving in (6, 2, 4, 1, 5, 3):
        scheduler.handle(Cancelled(leaving), 0.015)
        scheduler.check()
    scheduler.handle(Arrived("net", 9.0, (7,), (7,)), 0.016)
    *_, last = scheduler.handle(StageDone(0), 0.02)
    scheduler.check()
    assert isinstance(last, Run)
    assert (last.stage, last.requests) == (0, (7,))
    assert scheduler.stats() == {"accepted": 7, "queued": 0, "running": 1, "ended": 6}


def test_an_unknown_policy_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"choose late or lazy\+ or graph"):
        make_policy(PolicyConfig("fastest"))
