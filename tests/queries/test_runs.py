"""Random graphs, loads, failures, cancels and deadlines: every query ends exactly once and nothing is left over.

`HYPOTHESIS_PROFILE=thorough pytest tests/queries/test_runs.py` tries 100,000 queries and more.
"""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latebind.domain.actions import Branch, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.events import Branched, Cancelled, Event, MapFailed, Mapped, StageDone, StageFailed
from latebind.domain.query import Node, Query
from latebind.queries import PLANNERS
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival, Step
from tests.models import served
from tests.queries.graphs import node, query

FAILURES = 0.01  # of steps
ENOUGH = 1000  # slots: the simulator gives each request a new one


class Troubled(Simulator):
    """Stages and mappings fail now and then, clients leave; what the scheduler says is held to its promises."""

    def __init__(self, settings: SchedulerConfig, *, random: Random, failures: float) -> None:
        super().__init__(settings, mapping=0.01)
        self._random = random
        self._failures = failures
        self.begun: list[tuple[float, Map]] = []
        self.ran: dict[int, list[int]] = {}
        self.replies: list[int] = []

    def cancel(self, request: int, time: float) -> None:
        """Have the client of a request leave."""
        self._agenda.at(time, self._telling(Cancelled(request)))

    def _tell(self, event: Event, now: float) -> None:
        if isinstance(event, StageDone) and self._fails():
            event = StageFailed(event.worker)
        super()._tell(event, now)
        self.scheduler.check()

    def _run(self, action: Run, now: float) -> None:
        for request in action.requests:
            self.ran.setdefault(request, []).append(action.stage)
        super()._run(action, now)

    def _mapped(self, action: Branch | Map, now: float, *, more: bool) -> Branched | Mapped | MapFailed:
        if isinstance(action, Map):
            self.begun.append((now, action))
        if self._fails():
            return MapFailed(action.request, action.nodes if isinstance(action, Branch) else (action.node,), more)
        return super()._mapped(action, now, more=more)

    def _record(self, reply: Reply, now: float) -> None:
        self.replies.append(reply.request)
        super()._record(reply, now)

    def _fails(self) -> bool:
        return self._random.random() < self._failures


@st.composite
def graphs(draw: st.DrawFn, models: tuple[ServedModel, ...]) -> Query:
    """Up to six nodes; each waits for any of those before, may need one of several, and may have a condition."""
    names = [model.spec.name for model in models]
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 6))):
        after = draw(st.lists(st.integers(0, number - 1), max_size=3, unique=True)) if number else []
        options = draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True))
        made = node(f"n{number}", *options, after=sorted(after), guarded=draw(st.booleans()))
        if len(after) > 1 and draw(st.booleans()):
            made = Node(made.name, made.models, made.accuracies, made.after, (made.after,), made.guarded)
        nodes.append(made)
    return query(*nodes, planner=draw(st.sampled_from(list(PLANNERS))), replan=draw(st.booleans()))


@st.composite
def loads(draw: st.DrawFn, of: Query, models: tuple[ServedModel, ...]) -> list[Arrival]:
    """Up to eight calls, now and then in a rush, some for a model of the query's, with much time or too little."""
    stages = {model.spec.name: model.spec.stages for model in models}
    calls, time = [], 0.0
    for _ in range(draw(st.integers(1, 8))):
        time += draw(st.sampled_from((0.0, 0.3, 3.0)))
        allowed = draw(st.sampled_from((0.5, 3.0, 8.0, 100.0)))
        if draw(st.sampled_from((False, False, False, True))):
            name = draw(st.sampled_from(list(stages)))
            calls.append(Arrival(time, name, allowed, draw(st.integers(0, stages[name] - 1))))
            continue
        steps = [
            Step(tuple(draw(st.integers(0, stages[name] - 1)) for name in one.models), draw(st.booleans()))
            for one in of.nodes
        ]
        calls.append(Arrival(time, of.name, allowed, 0, rows=draw(st.integers(1, 2)), steps=tuple(steps)))
    return calls


@pytest.mark.parametrize("policies", [("late", "lazy+"), ("graph", "elastic")])
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_every_query_ends_exactly_once_and_nothing_is_left_over(
    policies: tuple[str, ...], data: st.DataObject, seed: int
) -> None:
    policy = data.draw(st.sampled_from(policies))
    models = tuple(
        served(name, stages=data.draw(st.integers(1, 3)), seconds=seconds, max_queued=100, hit_rates=rates)
        for name, seconds, rates in (("a", 0.1, None), ("b", 0.5, None), ("c", 1.0, {0: 0.3}))
    )
    models = tuple(model for model in models if not model.spec.lookups or model.spec.stages > 1)
    of = data.draw(graphs(models))
    calls = data.draw(loads(of, models))
    sheds = data.draw(st.booleans())
    settings = SchedulerConfig(
        models, data.draw(st.integers(1, 2)), PolicyConfig(policy, shed=sheds), queries=(of,), slots=ENOUGH
    )
    random = Random(seed)
    simulator = Troubled(settings, random=random, failures=data.draw(st.sampled_from((0.0, FAILURES, 0.2))))
    stride = 1 + len(of.nodes)
    numbers = _numbers(calls, of, stride)
    for request, call in numbers:
        if random.random() < 0.1:
            simulator.cancel(request, call.time + random.random() * 3.0)
    records = simulator.run(calls)

    assert sorted(record.request for record in records) == sorted(request for request, _ in numbers)
    assert sorted(simulator.replies) == sorted(request for request, _ in numbers)
    stats = simulator.scheduler.stats()
    assert stats["queued"] == stats["running"] == stats["queries_live"] == 0
    assert not simulator._arrivals
    by_request = {record.request: record for record in records}
    for request, call in numbers:
        if call.steps:
            _check_query(of, call, request, by_request[request], simulator, sheds=sheds)


def _numbers(calls: list[Arrival], of: Query, stride: int) -> list[tuple[int, Arrival]]:
    """Return the number of each request."""
    found, following = [], 0
    for call in calls:
        for _ in range(call.rows):
            found.append((following, call))
            following += stride if call.model == of.name else 1
    return found


def _check_query(of: Query, call: Arrival, request: int, record: Record, simulator: Troubled, *, sheds: bool) -> None:
    """Check one query against a plain account of which nodes should have run."""
    told: dict[int, StepEnded] = {step.node: step for step in simulator.steps if step.request == request}
    begun = [(time, action) for time, action in simulator.begun if action.request == request]
    assert len({action.node for _, action in begun}) == len(begun)  # no step begins twice
    due = call.time + call.allowed
    assert all(time <= due + 1e-9 for time, action in begun if action.node < len(of.nodes)) or not sheds
    assert all(step.outcome is Outcome.ANSWERED for step in told.values()) or record.outcome is not Outcome.ANSWERED
    if record.outcome is Outcome.ANSWERED:
        assert set(told) == _expected(of, call)
        for number, step in told.items():
            chosen = call.steps[number].leaves_at[step.option]
            assert simulator.ran[request + 1 + number] == list(range(chosen + 1))
            assert step.stage == chosen


def _expected(of: Query, call: Arrival) -> set[int]:
    """Return the nodes that run where nothing goes wrong."""
    ran: set[int] = set()
    for number, one in enumerate(of.nodes):
        needed = all(ran.intersection(group) for group in one.needs)
        if needed and (call.steps[number].holds or not one.guarded):
            ran.add(number)
    return ran
