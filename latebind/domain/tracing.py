"""Traces of single requests, from arrival to answer, made from events and actions, live and simulated alike. Pure.

Only requests whose `Arrived` has a trace number are followed; while there are none, an event costs one comparison.
"""

from collections.abc import Iterable, Sequence

import msgspec

from latebind.domain.actions import Action, Branch, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import (
    Arrived,
    Branched,
    Event,
    Exited,
    Loaded,
    MapFailed,
    Mapped,
    StageDone,
    StageFailed,
)

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
        self._begun = False
        self._stage: Span | None = None  # the stage that runs, or ran last
        self.running = False  # a stage runs, and the request has not ended
        self._mates: set[int] = set()
        self._asked: tuple[int, float] | None = None  # the stage and the start of a pending lookup beside the worker

    def add(self, what: str, start: float, end: float, **facts: Fact) -> Span:
        """Add a span of this request to the trace."""
        return self.trace.add(Span(what, start, end, self.step, facts))

    def run(self, action: Run, now: float) -> None:
        """Note that a stage starts. If the same stage ended just now, its span goes on: a decoder has many steps."""
        if not self._begun or now > self.since:
            self.add("rest" if self._begun else "wait", self.since, now)
        requests = set(action.requests)
        last = self._stage
        if last is not None and now == self.since and last.facts["stage"] == action.stage:
            last.facts["runs"] = int(last.facts["runs"]) + 1
            last.facts["batch"] = max(int(last.facts["batch"]), len(requests))
            last.facts["joined"] = int(last.facts["joined"]) + len(requests - self._mates)
        else:
            joined = len(requests - self._mates) if self._begun else 0
            facts: dict[str, Fact] = {"stage": action.stage, "worker": action.worker, "batch": len(requests)}
            self._stage = self.add("stage", now, now, **facts, runs=1, joined=joined)
        self._mates, self._begun, self.running = requests, True, True

    def ran(self, now: float, looked: float = 0.0) -> None:
        """Note that the stage has ended; its last `looked` seconds belong to a lookup."""
        assert self._stage is not None
        self._stage.end = now - looked
        self.since, self.running = now, False

    def failed(self, now: float) -> None:
        """Note that the stage has raised."""
        assert self._stage is not None
        self._stage.facts["failed"] = True
        self.ran(now)

    def asked(self, stage: int, now: float) -> None:
        """Note that a lookup beside the worker starts; the one before it counts as missed if it has not answered."""
        self.missed()
        self._asked = stage, now

    def hit(self, stage: int, now: float) -> None:
        """Note that a lookup beside the worker has answered."""
        start = self._asked[1] if self._asked is not None and self._asked[0] == stage else now
        self._asked = None
        self.add("lookup", start, now, stage=stage, hit=True)

    def missed(self) -> None:
        """Note that a pending lookup beside the worker missed. Its end is unknown: no event reports it."""
        if self._asked is not None:
            stage, asked = self._asked
            self.add("lookup", asked, asked, stage=stage, hit=False)
            self._asked = None

    def end(self, now: float) -> None:
        """Note that the request has ended; a stage that still runs ends for it."""
        self.missed()
        if self.running:
            self.ran(now)
        elif not self._begun:
            self.add("wait", self.since, now)


class Tracer:
    """Traces requests. Pass it every event with its actions; it returns the traces of requests that have ended."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._lookups = {served.spec.name: frozenset(served.spec.lookups) for served in config.models}
        self._aside = {served.spec.name for served in config.models if served.costs.aside}
        self._queries = {query.name: query for query in config.queries}
        self._paths: dict[int, Path] = {}  # by request, steps too
        self._running: dict[int, tuple[Run, list[Path]]] = {}  # by worker
        self._looks: dict[tuple[int, int], float] = {}  # by query and node: when its map or branch started

    def observe_all(self, happened: Iterable[tuple[float, Event, Sequence[Action]]]) -> list[Trace]:
        """Handle events, each with its time and its actions; return the traces of requests that have ended."""
        ended: list[Trace] = []
        for now, event, actions in happened:
            if self._paths or (type(event) is Arrived and event.trace):
                ended.extend(self.observe(event, actions, now=now))
        return ended

    def observe(self, event: Event, actions: Iterable[Action], *, now: float) -> Sequence[Trace]:
        """Handle one event, which happened at `now`, and its actions; return the traces of requests that have ended."""
        if type(event) is Arrived and event.trace:
            self._arrived(event, now)
        elif not self._paths:
            return ()
        else:
            self._handle(event, now)
        ended: list[Trace] = []
        for action in actions:
            match action:
                case Run():
                    self._run(action, now)
                case Reply() if action.request in self._paths:
                    ended.append(self._ended(action, now))
                case Map() | Branch():
                    self._look(action, now)
                case StepEnded() if action.request in self._paths:
                    self._step_ended(action, now)
        return ended

    def _arrived(self, event: Arrived, now: float) -> None:
        for request in event.requests:
            trace = Trace(event.trace, request, event.model, now, event.deadline, event.priority)
            self._paths[request] = Path(trace, event.model, now)

    def _handle(self, event: Event, now: float) -> None:
        match event:
            case StageDone() | StageFailed():
                action, paths = self._running.pop(event.worker, (None, ()))
                for path in paths:
                    if action is not None and path.running:  # who has ended meanwhile was told until then
                        self._ran(path, action, event, now)
            case Exited():
                for request in event.requests:
                    if request in self._paths:
                        self._paths[request].hit(event.stage, now)
            case Loaded():
                for path in self._paths.values():
                    if path.model == event.model:
                        path.add("load", max(path.began, now - event.seconds), now, pieces=len(event.pieces))
            case Branched():
                self._looked(event.requests, event.nodes, "branch", now)
            case MapFailed():
                self._looked(event.requests, event.nodes, "map", now)
            case Mapped():
                self._looked(event.requests, (event.node,), "map", now)

    def _run(self, action: Run, now: float) -> None:
        paths = [self._paths[request] for request in action.requests if request in self._paths]
        for path in paths:
            path.run(action, now)
        if paths:
            self._running[action.worker] = action, paths
        else:  # what it ran before may have ended while nobody was followed
            self._running.pop(action.worker, None)

    def _ran(self, path: Path, action: Run, event: StageDone | StageFailed, now: float) -> None:
        """Note that a stage has ended, and the result of the lookup behind it."""
        if isinstance(event, StageFailed):
            path.failed(now)
            return
        path.ran(now, event.looked)
        if action.stage in self._lookups[action.model]:
            if action.model in self._aside:
                path.asked(action.stage, now)
            elif event.looked:
                hit = any(self._paths.get(request) is path for request in event.exited)
                path.add("lookup", now - event.looked, now, stage=action.stage, hit=hit)

    def _look(self, action: Map | Branch, now: float) -> None:
        """Note that a map or branch of a query starts; a step that may start is traced from now on."""
        requests = [request for request in action.requests if request in self._paths]
        if isinstance(action, Branch):
            self._looks.update({(request, node): now for request in requests for node in action.nodes})
            return
        self._looks.update({(request, action.node): now for request in requests})
        nodes = self._queries[action.query].nodes
        if action.node < len(nodes):
            node = nodes[action.node]
            model = node.models[action.chosen[action.node]]
            for request in requests:
                self._paths[request + 1 + action.node] = Path(self._paths[request].trace, model, now, node.name)

    def _looked(self, requests: Iterable[int], nodes: Iterable[int], what: str, now: float) -> None:
        """Note that a map or branch has ended."""
        for request in requests:
            if request in self._paths:
                for node in nodes:
                    self._add_look(request, node, what, now)

    def _add_look(self, request: int, node: int, what: str, now: float) -> None:
        start = self._looks.pop((request, node), now)
        path = self._paths.get(request + 1 + node)
        if path is None:
            path = self._paths[request]
            nodes = self._queries[path.model].nodes
            path.trace.add(Span(what, start, now, nodes[node].name if node < len(nodes) else "outputs"))
            return
        path.add(what, start, now)
        path.since = now

    def _step_ended(self, action: StepEnded, now: float) -> None:
        path = self._paths.pop(action.request + 1 + action.node)
        path.end(now)
        facts: dict[str, Fact] = {"model": action.model, "outcome": action.outcome.name.lower()}
        path.add("step", path.began, now, **facts, left_at=action.stage, budget=action.budget)

    def _ended(self, action: Reply, now: float) -> Trace:
        path = self._paths.pop(action.request)
        query, trace = self._queries.get(action.model), path.trace
        if query is None:
            path.end(now)
        for node in range(0 if query is None else len(query.nodes) + 1):  # some were mapped and never started
            self._paths.pop(action.request + 1 + node, None)
            self._looks.pop((action.request, node), None)
        trace.ended, trace.outcome = now, Outcome(action.outcome).name.lower()
        trace.left_at, trace.slack = action.stage, action.slack
        return trace
