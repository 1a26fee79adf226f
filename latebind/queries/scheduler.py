"""Splits requests for queries into requests for models, and combines their replies. Pure.

It is a layer above the scheduler. A step is a request of its model like any other: it is batched, shed, held until its
model is loaded, and leaves early like all others. The driver does what needs tensors (`Branch`, `Map`).
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from latebind.domain.actions import Action, Branch, Map, Outcome, Reply, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import IllegalEvent
from latebind.domain.eventlog import Entry
from latebind.domain.events import Arrived, Branched, Cancelled, Event, MapFailed, Mapped
from latebind.domain.picture import Picture
from latebind.domain.query import NOT_RUN, lay_out
from latebind.queries.live import ENDED, JUDGED, LEFT_OUT, MAPPED, RUNNING, LiveQuery, Phase, ServedQuery
from latebind.queries.planners import Choice
from latebind.scheduler import Scheduler

ANSWERED = Outcome.ANSWERED  # looking a member up in its class takes ten times as long

# How a query ends whose later step was refused: it had been accepted itself.
ENDS = {Outcome.REFUSED_LATE: Outcome.EXPIRED, Outcome.REFUSED_LOADING: Outcome.EXPIRED}


TensorWork = tuple[str, int | tuple[int, ...], tuple[int, ...]]  # query, node to map or nodes to judge, models chosen


class QueryScheduler:
    """A scheduler that also knows queries. Feed it all events in order of time and perform all of its actions."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._scheduler = Scheduler(config)
        self._sheds = config.policy.shed
        rows = lay_out([served.spec.name for served in config.models], config.queries, config.slots)
        self._served = {query.name: ServedQuery(query, rows, self._scheduler) for query in config.queries}
        self._live: dict[int, LiveQuery] = {}
        self._steps: dict[int, LiveQuery] = {}  # the query of each step that is a request of its model now
        self._replies: deque[Reply] = deque()  # to steps, not handled yet
        self._pending: list[Event] = []  # not passed to the scheduler of models yet
        # Not requested from the driver yet, each with the queries that need it.
        self._tensor_work: dict[TensorWork, list[LiveQuery]] = {}
        self._accepted = 0
        self._ended = 0
        self._tensor_handlers: dict[type[Event], Callable[..., None]] = {
            Branched: self._branched,
            Mapped: self._mapped,
            MapFailed: self._map_failed,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Handle one event that happened at `now` (seconds, never decreasing) and return the actions, in order.

        Raises `IllegalEvent`, with nothing changed, for an event that the state does not allow.
        """
        actions: list[Action] = []
        more = False
        handler = self._tensor_handlers.get(type(event))
        if handler is not None:
            handler(event, now, actions)
            more = event.more  # type: ignore[union-attr]
        elif isinstance(event, Arrived) and event.model in self._served:
            self._arrived(event, now, actions)
            more = event.more
        elif isinstance(event, Cancelled) and event.request in self._live:
            self._live[event.request].fail(NOT_RUN, Outcome.CANCELLED)
            self._go_on(self._live[event.request], now, actions)
        else:
            self._pending.append(event)
        while self._replies or (self._pending and not more):
            self._pass_on(now, actions)
            while self._replies:
                self._step_ended(self._replies.popleft(), now, actions)
        if self._tensor_work and not more:
            self._emit_tensor_work(actions)
        return actions

    def stats(self) -> dict[str, int]:
        """Return the counts of requests of models, and how many queries were accepted, are live and have ended."""
        queries = {"queries": self._accepted, "queries_live": len(self._live), "queries_ended": self._ended}
        return {**self._scheduler.stats(), **queries}

    def picture(self, now: float) -> Picture:
        """Return what is under way at `now`, with the number of requests at each step of each query."""
        at = {name: [0] * len(served.query.nodes) for name, served in self._served.items()}
        for step, live in self._steps.items():
            at[live.served.name][step - live.request - 1] += 1
        steps = {name: tuple(counts) for name, counts in at.items()}
        return replace(self._scheduler.picture(now), queries=steps)

    def tallies(self) -> dict[str, dict[str, int]]:
        """Return, by model, how many merges, preemptions and refills there were since the start."""
        return self._scheduler.tallies()

    def check(self) -> None:
        """Raise `AssertionError` if an invariant does not hold."""
        self._scheduler.check()
        assert self._accepted == self._ended + len(self._live), "accepted is not live + ended"
        running = {
            live.step(node): live
            for live in self._live.values()
            for node, phase in enumerate(live.phases)
            if phase is RUNNING
        }
        assert running == self._steps, "the steps that run are not those that are known"
        assert all(live.work > 0 for live in self._live.values()), "a query is live and nothing is done for it"
        slots = [(live.served.name, live.slot) for live in self._live.values()]
        assert len(set(slots)) == len(slots), "a slot has two owners"

    # Events ---------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float, actions: list[Action]) -> None:
        served = self._served[event.model]
        if not self._live.keys().isdisjoint(event.requests):
            raise IllegalEvent(f"a request of {event.requests} has arrived twice")
        slack = event.deadline - (now + served.least(now))
        if self._sheds and slack < 0.0 and served.is_late(event.deadline - now, now):
            late = Outcome.REFUSED_LATE
            actions.extend([Reply(request, event.model, late, NOT_RUN, 0.0, 0.0, slack) for request in event.requests])
            return
        for request, slot in zip(event.requests, event.slots, strict=True):
            live = self._live[request] = LiveQuery(
                served, request, slot, deadline=event.deadline, now=now, slack=slack, priority=event.priority
            )
            self._accepted += 1
            if not served.query.planner.replan:
                live.planned = {node: _pick(live, node, now) for node in range(live.outputs)}
            self._go_on(live, now, actions)

    def _branched(self, event: Branched, now: float, actions: list[Action]) -> None:
        every = self._live_queries(event, event.nodes, (JUDGED,))
        if [len(event.nodes)] * len(every) != [len(holds) for holds in event.holds]:
            raise IllegalEvent(f"{event} does not say of each node whether its condition holds")
        for live, results in zip(every, event.holds, strict=True):
            live.served.branches.observe(event.nodes, results)
            for node, holds in zip(event.nodes, results, strict=True):
                if holds and live.failure is None:
                    self._begin(live, node, now)
                else:
                    live.move(node, LEFT_OUT)
            if live.due or live.failure is not None or not live.work:
                self._go_on(live, now, actions)

    def _mapped(self, event: Mapped, now: float, actions: list[Action]) -> None:
        node = event.node
        for place, live in enumerate(self._live_queries(event, (node,), (MAPPED,))):
            live.served.took_between_steps(now - live.reached)
            if live.failure is None and node < live.outputs:
                self._request(
                    live, node, event.inputs[place : place + 1], event.sizes[place] if event.sizes else 0, now
                )
            else:
                live.move(node, ENDED if live.failure is None else LEFT_OUT)
                self._go_on(live, now, actions)

    def _request(self, live: LiveQuery, node: int, inputs: tuple[int, ...], sizes: int, now: float) -> None:
        """Make a step a request of the model chosen for it; for `inputs` and `sizes` see `Arrived`."""
        live.move(node, RUNNING)
        served, step, option, level = live.served, live.step(node), live.chosen[node], live.levels[node]
        self._steps[step] = live
        due = live.deadline - served.least_after(node, now)
        row = served.rows[node][option] + live.slot
        model, priority = served.models[node][option], live.priority
        self._pending.append(Arrived(model, due, (step,), (row,), inputs, priority, sizes=sizes, level=level))

    def _map_failed(self, event: MapFailed, now: float, actions: list[Action]) -> None:
        for live in self._live_queries(event, event.nodes, (MAPPED, JUDGED)):
            for node in event.nodes:
                live.move(node, LEFT_OUT)
            live.fail(event.nodes[0], Outcome.FAILED)
            self._go_on(live, now, actions)

    def _pass_on(self, now: float, actions: list[Action]) -> None:
        """Pass events that wait to the scheduler of models; its replies to steps are kept for this layer."""
        events, self._pending = self._pending, []
        for served in self._served.values():
            served.invalidate()
        for action in self._scheduler.handle_all(events, now) if events else ():
            if isinstance(action, Reply) and action.request in self._steps:
                self._replies.append(action)
            else:
                actions.append(action)

    def _step_ended(self, reply: Reply, now: float, actions: list[Action]) -> None:
        live = self._steps.pop(reply.request)
        node = reply.request - live.request - 1
        first = not live.ran
        if first:
            live.waited = reply.waited
        live.move(node, ENDED)
        live.reached = now
        actions.append(_step_ended_action(live, node, reply, now))
        if reply.outcome is not ANSWERED:
            live.fail(node, reply.outcome if first else ENDS.get(reply.outcome, reply.outcome))
        self._go_on(live, now, actions)

    # Decisions ------------------------------------------------------------------------------------------------------

    def _go_on(self, live: LiveQuery, now: float, actions: list[Action]) -> None:
        """Start the nodes that can start, or cancel those that run; end the query when nothing is at work any more."""
        judged: list[int] = []
        for node in live.ready():
            if live.served.guarded[node]:
                live.move(node, JUDGED)
                judged.append(node)
            elif live.failure is None:
                self._begin(live, node, now)
        if judged:
            self._queue_tensor_work(live, tuple(judged))
        if live.failure is not None:
            for node in live.running:
                self._pending.append(Cancelled(live.step(node)))
        if not live.work:
            self._end(live, now, actions)

    def _queue_tensor_work(self, live: LiveQuery, what: int | tuple[int, ...]) -> None:
        """Queue a node to map, or nodes to judge, together with other queries that are as far with the same models."""
        self._tensor_work.setdefault((live.served.name, what, tuple(live.chosen)), []).append(live)

    def _emit_tensor_work(self, actions: list[Action]) -> None:
        for (query, what, chosen), every in self._tensor_work.items():
            requests, slots = tuple([live.request for live in every]), tuple([live.slot for live in every])
            if isinstance(what, int):
                actions.append(Map(query, requests, slots, what, chosen))
            else:
                actions.append(Branch(query, requests, slots, what, chosen))
        self._tensor_work.clear()

    def _begin(self, live: LiveQuery, node: int, now: float) -> None:
        """Queue a node to map, for the model picked for it now or in advance."""
        if node < live.outputs:
            if self._sheds and now > live.deadline:
                live.move(node, LEFT_OUT)
                live.fail(node, Outcome.EXPIRED)
                return
            choice = live.planned[node] if live.planned else _pick(live, node, now)
            option = live.served.options[node][choice.option]
            live.chosen[node], live.levels[node] = option.model, option.level
            live.budgets[node], live.began[node] = choice.budget, now
        live.move(node, MAPPED)
        self._queue_tensor_work(live, node)

    def _end(self, live: LiveQuery, now: float, actions: list[Action]) -> None:
        del self._live[live.request]
        self._ended += 1
        outcome = ANSWERED if live.failure is None else live.failure
        # A refusal while the model loads reports a wait that is still ahead.
        ran = max(0.0, now - live.arrived - live.waited)
        actions.append(Reply(live.request, live.served.name, outcome, live.last_node, live.waited, ran, live.slack))

    def _live_queries(
        self, event: Branched | Mapped | MapFailed, nodes: Sequence[int], phases: Sequence[Phase]
    ) -> list[LiveQuery]:
        """Return the queries of an event, whose `nodes` must be in one of these phases. Raises `IllegalEvent`."""
        every = [live for request in event.requests if (live := self._live.get(request)) is not None]
        if not nodes or not len(every) == len(event.requests) == len(set(event.requests)):
            raise IllegalEvent(f"{event} was not asked for")
        for live in every:
            for node in nodes:
                if not 0 <= node <= live.outputs or live.phases[node] not in phases:
                    raise IllegalEvent(f"{event} was not asked for")
        return every


def _pick(live: LiveQuery, node: int, now: float) -> Choice:
    return live.served.pick(node, live.open, live.deadline - now, now)


def _step_ended_action(live: LiveQuery, node: int, reply: Reply, now: float) -> StepEnded:
    return StepEnded(
        live.served.name,
        live.request,
        node,
        live.chosen[node],
        reply.model,
        reply.outcome,
        reply.stage,
        reply.waited,
        reply.ran,
        live.budgets[node],
        now - live.began[node],
        reply.slack,
    )


AnyScheduler = Scheduler | QueryScheduler


def make_scheduler(config: SchedulerConfig) -> AnyScheduler:
    """Return the scheduler for a configuration; the layer for queries is left out if there are none."""
    return QueryScheduler(config) if config.queries else Scheduler(config)


def replayed(config: SchedulerConfig, entries: Iterable[Entry]) -> tuple[int, int, str]:
    """Return how many events were replayed, how many actions followed, and where these first differ; "" if nowhere.

    Raises `AssertionError` if an invariant of the scheduler does not hold at the end. The log of a killed engine may
    end between events that arrived together; then nothing has been decided for them, and invariants are not checked.
    """
    scheduler = make_scheduler(config)
    events = actions = 0
    more = False
    for number, entry in enumerate(entries, start=2):
        decided = tuple(scheduler.handle(entry.event, entry.now))
        if decided != entry.actions:
            difference = f"line {number} differs: {entry.event}\n  log     {entry.actions}\n  replay  {decided}"
            return events, actions, difference
        events += 1
        actions += len(decided)
        more = getattr(entry.event, "more", False)
    if not more:
        scheduler.check()
    return events, actions, ""
