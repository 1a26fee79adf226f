"""Takes requests for queries apart into requests for models, and their replies together. Pure.

A layer above the scheduler: a step is a request of its model like any other, so it is batched, shed, held for a model
that has to be loaded and leaves early as all do. What looks into tensors is asked of the driver (`Branch`, `Map`).
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from latebind.domain.actions import Action, Branch, Map, Outcome, Reply, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import IllegalEvent
from latebind.domain.events import Arrived, Branched, Cancelled, Event, MapFailed, Mapped
from latebind.domain.picture import Picture
from latebind.domain.query import NOT_RUN, lay_out
from latebind.queries.course import Course
from latebind.queries.life import ENDED, JUDGED, LEFT_OUT, MAPPED, RUNNING, Life, Phase
from latebind.queries.view import Choice
from latebind.scheduler import Scheduler

ANSWERED = Outcome.ANSWERED  # to look a member up in its class takes ten times as long

# How a query ends whose later step was refused: it had been accepted itself.
ENDS = {Outcome.REFUSED_LATE: Outcome.EXPIRED, Outcome.REFUSED_LOADING: Outcome.EXPIRED}


class QueryScheduler:
    """A scheduler that knows queries too. Feed it every event in the order of time and perform every action."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._scheduler = Scheduler(config)
        self._sheds = config.policy.shed
        rows = lay_out([served.spec.name for served in config.models], config.queries, config.slots)
        self._courses = {query.name: Course(query, rows, self._scheduler) for query in config.queries}
        self._live: dict[int, Life] = {}
        self._steps: dict[int, Life] = {}  # the queries by those of their steps that are requests of models now
        self._replies: deque[Reply] = deque()  # to steps, which nobody has taken in yet
        self._untold: list[Event] = []  # to the scheduler of models
        self._accepted = 0
        self._ended = 0
        self._looked: dict[type[Event], Callable[..., None]] = {
            Branched: self._branched,
            Mapped: self._mapped,
            MapFailed: self._map_failed,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event that happened at `now` (seconds, never going back) and return what to do, in order.

        Raises `IllegalEvent`, with nothing changed, for an event that the state does not allow.
        """
        actions: list[Action] = []
        more = False
        looked = self._looked.get(type(event))
        if looked is not None:
            looked(event, now, actions)
            more = event.more  # type: ignore[union-attr]
        elif isinstance(event, Arrived) and event.model in self._courses:
            self._arrived(event, now, actions)
        elif isinstance(event, Cancelled) and event.request in self._live:
            self._live[event.request].fail(NOT_RUN, Outcome.CANCELLED)
            self._go_on(self._live[event.request], now, actions)
        else:
            self._untold.append(event)
        while self._replies or (self._untold and not more):
            self._tell_below(now, actions)
            while self._replies:
                self._step_ended(self._replies.popleft(), now, actions)
        return actions

    def stats(self) -> dict[str, int]:
        """Return the counts of requests of models, and how many queries were accepted, are live and have ended."""
        queries = {"queries": self._accepted, "queries_live": len(self._live), "queries_ended": self._ended}
        return {**self._scheduler.stats(), **queries}

    def picture(self, now: float) -> Picture:
        """Return what is under way at `now`, with how many are at each step of each query."""
        at = {name: [0] * len(course.query.nodes) for name, course in self._courses.items()}
        for step, life in self._steps.items():
            at[life.course.name][step - life.request - 1] += 1
        steps = {name: tuple(counts) for name, counts in at.items()}
        return replace(self._scheduler.picture(now), queries=steps)

    def tallies(self) -> dict[str, dict[str, int]]:
        """Return, by model, how many merges, preemptions and refills there were since the start."""
        return self._scheduler.tallies()

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self._scheduler.check()
        assert self._accepted == self._ended + len(self._live), "accepted is not live + ended"
        running = {
            life.step(node): life
            for life in self._live.values()
            for node, phase in enumerate(life.phases)
            if phase is RUNNING
        }
        assert running == self._steps, "the steps that run are not those that are known"
        assert all(life.work > 0 for life in self._live.values()), "a query is live and nothing is done for it"
        slots = [(life.course.name, life.slot) for life in self._live.values()]
        assert len(set(slots)) == len(slots), "a slot has two owners"

    # Events ---------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float, actions: list[Action]) -> None:
        course = self._courses[event.model]
        if not self._live.keys().isdisjoint(event.requests):
            raise IllegalEvent(f"a request of {event.requests} has arrived twice")
        slack = event.deadline - (now + course.moment.least)
        if self._sheds and slack < 0.0 and course.is_late(event.deadline - now):
            late = Outcome.REFUSED_LATE
            actions.extend([Reply(request, event.model, late, NOT_RUN, 0.0, 0.0, slack) for request in event.requests])
            return
        for request, slot in zip(event.requests, event.slots, strict=True):
            life = self._live[request] = Life(
                course, request, slot, deadline=event.deadline, now=now, slack=slack, priority=event.priority
            )
            self._accepted += 1
            if not course.query.planner.replan:
                life.planned = {node: _pick(life, node, now) for node in range(life.outputs)}
            self._go_on(life, now, actions)

    def _branched(self, event: Branched, now: float, actions: list[Action]) -> None:
        life = self._life(event, event.nodes, (JUDGED,))
        if len(event.nodes) != len(event.holds):
            raise IllegalEvent(f"{event} does not say of each node whether its condition holds")
        life.course.branches.observe(event.nodes, event.holds)
        for node, holds in zip(event.nodes, event.holds, strict=True):
            if holds and life.doom is None:
                self._begin(life, node, now, actions)
            else:
                life.move(node, LEFT_OUT)
        if life.due or life.doom is not None or not life.work:
            self._go_on(life, now, actions)

    def _mapped(self, event: Mapped, now: float, actions: list[Action]) -> None:
        life, node = self._live.get(event.request), event.node
        if life is None or not 0 <= node <= life.outputs or life.phases[node] is not MAPPED:
            raise IllegalEvent(f"{event} was not asked for")
        life.course.passing.observe(now - life.reached)
        if life.doom is not None:
            life.move(node, LEFT_OUT)
        elif node == life.outputs:
            life.move(node, ENDED)
        else:
            life.move(node, RUNNING)
            course, step, option = life.course, life.step(node), life.chosen[node]
            self._steps[step] = life
            due = life.deadline - course.moment.least_after(node)
            row = course.rows[node][option] + life.slot
            model = course.models[node][option]
            self._untold.append(Arrived(model, due, (step,), (row,), (), (), life.priority))
            return
        self._go_on(life, now, actions)

    def _map_failed(self, event: MapFailed, now: float, actions: list[Action]) -> None:
        life = self._life(event, event.nodes, (MAPPED, JUDGED))
        for node in event.nodes:
            life.move(node, LEFT_OUT)
        life.fail(event.nodes[0], Outcome.FAILED)
        self._go_on(life, now, actions)

    def _tell_below(self, now: float, actions: list[Action]) -> None:
        """Tell the scheduler of models what it has not heard yet; what it replies to steps stays here."""
        events, self._untold = self._untold, []
        for course in self._courses.values():
            course.look_again()
        for action in self._scheduler.handle_all(events, now) if events else ():
            if isinstance(action, Reply) and action.request in self._steps:
                self._replies.append(action)
            else:
                actions.append(action)

    def _step_ended(self, reply: Reply, now: float, actions: list[Action]) -> None:
        life = self._steps.pop(reply.request)
        node = reply.request - life.request - 1
        first = not life.ran
        if first:
            life.waited = reply.waited
        life.move(node, ENDED)
        life.reached = now
        actions.append(_told(life, node, reply, now))
        if reply.outcome is not ANSWERED:
            life.fail(node, reply.outcome if first else ENDS.get(reply.outcome, reply.outcome))
        self._go_on(life, now, actions)

    # Decisions ------------------------------------------------------------------------------------------------------

    def _go_on(self, life: Life, now: float, actions: list[Action]) -> None:
        """Begin what can begin, or call off what runs; end the query once nothing of it is at work any more."""
        judged: list[int] = []
        for node in life.ready():
            if life.course.guarded[node]:
                life.move(node, JUDGED)
                judged.append(node)
            elif life.doom is None:
                self._begin(life, node, now, actions)
        if judged:
            chosen = tuple(life.chosen)
            actions.append(Branch(life.course.name, life.request, life.slot, tuple(judged), chosen))
        if life.doom is not None:
            for node in life.running:
                self._untold.append(Cancelled(life.step(node)))
        if not life.work:
            self._end(life, now, actions)

    def _begin(self, life: Life, node: int, now: float, actions: list[Action]) -> None:
        """Have the inputs of a node written, for the model that is picked for it now or was beforehand."""
        if node < life.outputs:
            if self._sheds and now > life.deadline:
                life.move(node, LEFT_OUT)
                life.fail(node, Outcome.EXPIRED)
                return
            choice = life.planned[node] if life.planned else _pick(life, node, now)
            life.chosen[node], life.budgets[node], life.began[node] = choice.option, choice.budget, now
        life.move(node, MAPPED)
        actions.append(Map(life.course.name, life.request, life.slot, node, tuple(life.chosen)))

    def _end(self, life: Life, now: float, actions: list[Action]) -> None:
        del self._live[life.request]
        self._ended += 1
        outcome = ANSWERED if life.doom is None else life.doom
        ran = max(0.0, now - life.arrived - life.waited)  # who is told to come again has not waited yet
        actions.append(Reply(life.request, life.course.name, outcome, life.came_to, life.waited, ran, life.slack))

    def _life(self, event: Branched | MapFailed, nodes: Sequence[int], phases: Sequence[Phase]) -> Life:
        """Return the query that an event is of, where its `nodes` are in one of these phases."""
        life = self._live.get(event.request)
        if life is None or not nodes:
            raise IllegalEvent(f"{event} was not asked for")
        for node in nodes:
            if not 0 <= node <= life.outputs or life.phases[node] not in phases:
                raise IllegalEvent(f"{event} was not asked for")
        return life


def _pick(life: Life, node: int, now: float) -> Choice:
    return life.course.pick(node, life.open, life.deadline - now, life.deadline - life.arrived)


def _told(life: Life, node: int, reply: Reply, now: float) -> StepEnded:
    return StepEnded(
        life.course.name,
        life.request,
        node,
        life.chosen[node],
        reply.model,
        reply.outcome,
        reply.stage,
        reply.waited,
        reply.ran,
        life.budgets[node],
        now - life.began[node],
        reply.slack,
    )


AnyScheduler = Scheduler | QueryScheduler


def make_scheduler(config: SchedulerConfig) -> AnyScheduler:
    """Return the scheduler for a configuration: one without queries needs no layer for them."""
    return QueryScheduler(config) if config.queries else Scheduler(config)
