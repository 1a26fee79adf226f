"""One random graph under a random load with failures, cancels and deadlines: every query ends exactly once.

`python -m tests.queries.runs --queries 100000` plays so many and more, in two minutes of a core.
"""

import argparse
from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from latebind.domain.actions import Branch, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.events import Branched, Cancelled, Event, MapFailed, Mapped, StageDone, StageFailed
from latebind.domain.query import Node, Query
from latebind.queries import PLANNERS
from latebind.simulation.driver import Record, Simulator
from latebind.simulation.workloads import Arrival, Step
from research.policies import BATCHING
from tests.models import served
from tests.queries.graphs import node, query

POLICIES = ("late", "lazy+", "graph", BATCHING["elastic"])
FAILURES = (0.0, 0.01, 0.2)  # of steps
ENOUGH = 1000  # slots: the simulator gives each request a new one
MOST_CALLS = 8
MANY_CALLS = 40  # at most, where it is about how many queries there are
TOLD = 10_000  # queries, after which it is said how far it is


class Troubled(Simulator):
    """Stages and mappings fail now and then, clients leave; what the scheduler says is held to its promises."""

    def __init__(self, settings: SchedulerConfig, *, random: Random, failures: float) -> None:
        super().__init__(settings, mapping=0.01)
        self._random = random
        self._failures = failures
        self.begun: list[tuple[int, int]] = []  # request and node
        self.started: dict[int, float] = {}  # when a request's first stage began to run
        self.ran: dict[int, list[int]] = {}
        self.replies: list[int] = []

    def cancel(self, request: int, time: float) -> None:
        """Have the client of a request leave."""
        self._agenda.at(time, self._delivery(Cancelled(request)))

    def _deliver(self, event: Event, now: float) -> None:
        if isinstance(event, StageDone) and self._fails():
            event = StageFailed(event.worker)
        super()._deliver(event, now)
        self.scheduler.check()

    def _run(self, action: Run, now: float) -> None:
        for request in action.requests:
            ran = self.ran.setdefault(request, [])
            if ran[-1:] != [action.stage]:  # else it raised for a batch, and runs again by halves
                ran.append(action.stage)
            self.started.setdefault(request, now)
        super()._run(action, now)

    def _mapped(self, action: Branch | Map, now: float) -> Sequence[Branched | Mapped | MapFailed]:
        failed = [self._fails() for _ in action.requests]
        nodes = action.nodes if isinstance(action, Branch) else (action.node,)
        if isinstance(action, Map):
            self.begun += [(request, action.node) for request in action.requests]
        events: list[Branched | Mapped | MapFailed] = [
            MapFailed((request,), nodes) for request, fails in zip(action.requests, failed, strict=True) if fails
        ]
        if not all(failed):
            well = [place for place, fails in enumerate(failed) if not fails]
            requests, slots = (tuple([of[place] for place in well]) for of in (action.requests, action.slots))
            events += super()._mapped(replace(action, requests=requests, slots=slots), now)
        return events

    def _record(self, reply: Reply, now: float) -> None:
        self.replies.append(reply.request)
        super()._record(reply, now)

    def _fails(self) -> bool:
        return self._random.random() < self._failures


def play(
    random: Random, policies: Sequence[str] = POLICIES, most_calls: int = MOST_CALLS, planners: Sequence[str] = ()
) -> tuple[list[Record], list[StepEnded]]:
    """Play one load on one graph and check what became of it; return the ends of its queries and of their steps."""
    models = tuple(
        served(name, stages=random.randint(1, 3), seconds=seconds, max_queued=100, hit_rates=rates)
        for name, seconds, rates in (("a", 0.1, None), ("b", 0.5, None), ("c", 1.0, {0: 0.3}))
    )
    models = tuple(model for model in models if not model.spec.lookups or model.spec.stages > 1)
    of = _graph(random, [model.spec.name for model in models], planners or list(PLANNERS))
    calls = _load(random, of, models, most_calls)
    policy = PolicyConfig(random.choice(policies), shed=random.choice((False, True)))
    settings = SchedulerConfig(models, random.randint(1, 2), policy, queries=(of,), slots=ENOUGH)
    simulator = Troubled(settings, random=random, failures=random.choice(FAILURES))
    numbers = _numbers(calls, of, 1 + len(of.nodes))
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
    queries = [(request, call) for request, call in numbers if call.steps]
    for request, call in queries:
        _check_query(of, call, request, by_request[request], simulator, sheds=policy.shed)
    return [by_request[request] for request, _ in queries], simulator.steps


def _graph(random: Random, names: list[str], planners: Sequence[str]) -> Query:
    """Up to six nodes; each waits for any of those before, may need one of several, and may have a condition."""
    nodes: list[Node] = []
    for number in range(random.randint(1, 6)):
        after = sorted(random.sample(range(number), random.randint(0, min(3, number))))
        options = random.sample(names, random.randint(1, len(names)))
        made = node(f"n{number}", *options, after=after, guarded=random.choice((False, True)))
        if len(after) > 1 and random.choice((False, True)):
            made = Node(made.name, made.models, made.accuracies, made.after, (made.after,), made.guarded)
        nodes.append(made)
    return query(*nodes, planner=random.choice(planners), replan=random.choice((False, True)))


def _load(random: Random, of: Query, models: tuple[ServedModel, ...], most: int) -> list[Arrival]:
    """Some calls, now and then in a rush, some for a model of the query's, with much time or too little."""
    stages = {model.spec.name: model.spec.stages for model in models}
    calls, time = [], 0.0
    for _ in range(random.randint(1, most)):
        time += random.choice((0.0, 0.3, 3.0))
        allowed = random.choice((0.5, 3.0, 8.0, 100.0))
        if random.choice((False, False, False, True)):
            name = random.choice(list(stages))
            calls.append(Arrival(time, name, allowed, random.randint(0, stages[name] - 1)))
            continue
        steps = [
            Step(tuple(random.randint(0, stages[name] - 1) for name in one.models), random.choice((False, True)))
            for one in of.nodes
        ]
        calls.append(Arrival(time, of.name, allowed, 0, rows=random.randint(1, 2), steps=tuple(steps)))
    return calls


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
    begun = [node for query, node in simulator.begun if query == request]
    assert len(set(begun)) == len(begun)  # no step begins twice
    due = call.time + call.allowed
    started = [simulator.started.get(request + 1 + number, due) for number in range(len(of.nodes))]
    assert all(time <= due + 1e-9 for time in started) or not sheds  # none runs after the deadline
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


def main() -> None:
    """Play until there were so many queries; each play has a seed, by which it can be played again alone."""
    parser = argparse.ArgumentParser(description="Random queries, each of which has to end exactly once.")
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0, help="of the first play")
    asked = parser.parse_args()
    seed, count, told = asked.seed, 0, 0
    while count < asked.queries:
        try:
            count += len(play(Random(seed), most_calls=MANY_CALLS)[0])
        except BaseException:
            print(f"failed with --seed {seed} --queries 1", flush=True)
            raise
        seed += 1
        if count // TOLD > told:
            told = count // TOLD
            print(f"{count} queries in {seed - asked.seed} plays, each ended exactly once", flush=True)
    print(f"{count} queries in {seed - asked.seed} plays, each ended exactly once", flush=True)


if __name__ == "__main__":
    main()
