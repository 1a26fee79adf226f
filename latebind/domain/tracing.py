"""Traces of single requests, from arrival to answer, made from events and actions, live and simulated. Pure.

Only requests whose `Arrived` has a trace number are traced; while there are none, an event costs one comparison.
"""

from collections.abc import Iterable, Sequence
from itertools import product

import msgspec

from latebind.domain.actions import Action, Branch, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Arrived, Branched, Event, Exited, Loaded, MapFailed, Mapped, StageDone, StageFailed

MOST_SPANS = 256  # spans of one trace

Fact = int | float | str | bool


class Span(msgspec.Struct):
    """A part of a request's life. Times in seconds of the scheduler's clock.

    `what` is `wait` (before the first stage), `stage`, `rest` (between two stages: others ran, or the next stage was
    not in memory), `lookup` (in a learned cache), `load` (pieces of the model were loaded), `map` or `branch` (tensors
    of a query were written, or its conditions evaluated) or `step`. `step` is the name of the query's step that the
    span belongs to.
    """

    what: str
    start: float
    end: float
    step: str = ""
    facts: dict[str, Fact] = msgspec.field(default_factory=dict)


class Trace(msgspec.Struct):
    """The trace of one request; `number` is the trace number of its `Arrived`, which all rows of a call share.

    `slack` is the slack in seconds that was predicted when it arrived. Spans are in order of time; `dropped` counts the
    spans beyond `MOST_SPANS`.
    """

    number: int
    request: int
    model: str
    arrived: float
    deadline: float
    priority: int = 0
    spans: list[Span] = msgspec.field(default_factory=list)
    dropped: int = 0
    ended: float = 0.0
    outcome: str = ""
    left_at: int = -1
    slack: float | None = None

    def add(self, span: Span) -> Span:
        """Keep a span, unless there are too many."""
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)
        else:
            self.dropped += 1
        return span


class Path:
    """A traced request of a model: a client's, or a step of a query. `since` is the time of its last boundary."""

    def __init__(self, trace: Trace, model: str, now: float, step: str = "") -> None:
        self.trace = trace
        self.model = model
        self.step = step
        self.began = self.since = now
        self.running = False  # a stage runs, and the request has not ended
        self._stage: Span | None = None  # the stage that runs, or ran last
        self._mates: set[int] = set()
        self.asked: Span | None = None  # the latest lookup beside the worker

    def add(self, what: str, start: float, end: float, **facts: Fact) -> Span:
        """Add a span of this request to the trace."""
        return self.trace.add(Span(what, start, end, self.step, facts))

    def run(self, action: Run, now: float) -> None:
        """Note that a stage starts. If the same stage ended just now, its span continues: a decoder has many steps."""
        last, requests = self._stage, set(action.requests)
        if last is None or now > self.since:
            self.add("wait" if last is None else "rest", self.since, now)
        joined = 0 if last is None else len(requests - self._mates)
        if last is not None and now == self.since and last.facts["stage"] == action.stage:
            last.facts["runs"] = int(last.facts["runs"]) + 1
            last.facts["batch"] = max(int(last.facts["batch"]), len(requests))
            last.facts["joined"] = int(last.facts["joined"]) + joined
        else:
            facts: dict[str, Fact] = {"stage": action.stage, "worker": action.worker, "batch": len(requests)}
            self._stage = self.add("stage", now, now, **facts, runs=1, joined=joined)
        self._mates, self.running = requests, True

    def ran(self, now: float, looked: float = 0.0, *, failed: bool = False) -> None:
        """Note that the stage has ended; its last `looked` seconds belong to a lookup."""
        assert self._stage is not None
        self._stage.end = now - looked
        if failed:
            self._stage.facts["failed"] = True
        self.since, self.running = now, False

    def end(self, now: float) -> None:
        """Note that the request has ended; a stage that still runs ends for it then."""
        if self.running:
            self.ran(now)
        elif self._stage is None:
            self.add("wait", self.since, now)


class Tracer:
    """Traces requests. Pass it every event with its actions; it returns the traces of requests that have ended."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._lookups = {served.spec.name: frozenset(served.spec.lookups) for served in config.models}
        self._aside = {served.spec.name for served in config.models if served.costs.aside}
        self._queries = {query.name: query for query in config.queries}
        self._paths: dict[int, Path] = {}  # by request, steps too
        self._running: dict[int, tuple[Run, list[Path]]] = {}  # by worker
        self._tensor_starts: dict[tuple[int, int], float] = {}  # by query and node: when its map or branch started

    def observe_all(self, happened: Iterable[tuple[float, Event, Sequence[Action]]]) -> list[Trace]:
        """Handle events, each with its time and its actions; return the traces of requests that have ended."""
        ended: list[Trace] = []
        for now, event, actions in happened:
            if self._paths or (type(event) is Arrived and event.trace):
                ended.extend(self.observe(event, actions, now=now))
        return ended

    def observe(self, event: Event, actions: Iterable[Action], *, now: float) -> Sequence[Trace]:
        """Handle one event, which happened at `now`, and its actions; return the traces of requests that have ended."""
        if not (self._paths or (type(event) is Arrived and event.trace)):
            return ()
        self._handle(event, now)
        ended: list[Trace] = []
        for action in actions:
            match action:
                case Run():
                    paths = [self._paths[request] for request in action.requests if request in self._paths]
                    for path in paths:
                        path.run(action, now)
                    if paths:
                        self._running[action.worker] = action, paths
                    else:  # what it ran before may have ended while no request was traced
                        self._running.pop(action.worker, None)
                case Reply() if action.request in self._paths:
                    ended.append(self._ended(action, now))
                case Map() | Branch():
                    self._tensor_action_started(action, now)
                case StepEnded() if action.request in self._paths:
                    path = self._paths.pop(action.request + 1 + action.node)
                    path.end(now)
                    facts: dict[str, Fact] = {"model": action.model, "outcome": action.outcome.name.lower()}
                    path.add("step", path.began, now, **facts, left_at=action.stage, budget=action.budget)
        return ended

    def _handle(self, event: Event, now: float) -> None:
        match event:
            case Arrived():
                for request in event.requests if event.trace else ():
                    trace = Trace(event.trace, request, event.model, now, event.deadline, event.priority)
                    self._paths[request] = Path(trace, event.model, now)
            case StageDone() | StageFailed():
                self._stage_ended(event, now)
            case Exited():
                for path in [self._paths[request] for request in event.requests if request in self._paths]:
                    if path.asked is None or path.asked.facts["stage"] != event.stage:  # it came after the next one
                        path.asked = path.add("lookup", now, now, stage=event.stage, hit=True)
                    path.asked.end, path.asked.facts["hit"] = now, True
            case Loaded():
                for path in self._paths.values():
                    if path.model == event.model:
                        path.add("load", max(path.began, now - event.seconds), now, pieces=len(event.pieces))
            case Branched() | MapFailed():
                self._tensor_action_ended(
                    event.requests, event.nodes, "branch" if isinstance(event, Branched) else "map", now
                )
            case Mapped():
                self._tensor_action_ended(event.requests, (event.node,), "map", now)

    def _stage_ended(self, event: StageDone | StageFailed, now: float) -> None:
        """Note that a stage has ended, and the result of the lookup behind it."""
        if event.worker not in self._running:
            return
        action, paths = self._running.pop(event.worker)
        for path in paths:
            if not path.running:  # the request has ended meanwhile, and its trace with it
                continue
            if isinstance(event, StageFailed):
                path.ran(now, failed=True)
                continue
            path.ran(now, event.looked)
            if action.stage in self._lookups[action.model]:
                if action.model in self._aside:  # no event reports a miss, so its end is unknown
                    path.asked = path.add("lookup", now, now, stage=action.stage, hit=False)
                elif event.looked:
                    hit = any(self._paths.get(request) is path for request in event.exited)
                    path.add("lookup", now - event.looked, now, stage=action.stage, hit=hit)

    def _tensor_action_started(self, action: Map | Branch, now: float) -> None:
        """Note that a map or branch of a query starts; a step that may start is traced from now on."""
        mapped, nodes = isinstance(action, Map), self._queries[action.query].nodes
        numbers = (action.node,) if isinstance(action, Map) else action.nodes
        for request in action.requests:
            if request not in self._paths:
                continue
            self._tensor_starts.update({(request, node): now for node in numbers})
            if mapped and numbers[0] < len(nodes):
                node = nodes[numbers[0]]
                model = node.models[action.chosen[numbers[0]]]
                self._paths[request + 1 + numbers[0]] = Path(self._paths[request].trace, model, now, node.name)

    def _tensor_action_ended(self, requests: Iterable[int], numbers: Iterable[int], what: str, now: float) -> None:
        """Note that a map or branch has ended."""
        for request, node in product(requests, numbers):
            if request not in self._paths:
                continue
            start, path = self._tensor_starts.pop((request, node), now), self._paths.get(request + 1 + node)
            if path is not None:
                path.add(what, start, now)
                path.since = now
            else:
                whole = self._paths[request]
                nodes = self._queries[whole.model].nodes
                whole.trace.add(Span(what, start, now, nodes[node].name if node < len(nodes) else "outputs"))

    def _ended(self, action: Reply, now: float) -> Trace:
        path = self._paths.pop(action.request)
        query, trace = self._queries.get(action.model), path.trace
        if query is None:
            path.end(now)
        for node in range(0 if query is None else len(query.nodes) + 1):  # some were mapped and never started
            self._paths.pop(action.request + 1 + node, None)
            self._tensor_starts.pop((action.request, node), None)
        trace.ended, trace.outcome = now, Outcome(action.outcome).name.lower()
        trace.left_at, trace.slack = action.stage, action.slack
        return trace
