"""What became of single requests, from arrival to answer. Made from events and actions, live and simulated alike. Pure.

Only requests whose `Arrived` has a number to trace are followed; where there are none, an event costs one comparison.
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

MOST_SPANS = 256  # of one trace

Fact = int | float | str | bool


class Span(msgspec.Struct):
    """A part of a request's life. Times in seconds of the scheduler's clock.

    `what` is `wait` (to begin), `stage`, `rest` (between two stages, for others or for want of memory), `lookup` (a
    learned cache was asked), `load` (pieces of the model came to memory), `map` or `branch` (tensors of a query were
    written, or looked into) or `step`. What belongs to a step of a query has its name.
    """

    what: str
    start: float
    end: float
    step: str = ""
    facts: dict[str, Fact] = msgspec.field(default_factory=dict)


class Trace(msgspec.Struct):
    """The life of one request; `number` is that of its `Arrived`, which all rows of a call share.

    `slack` is what it was taken to have to spare when it came. Of spans that follow each other the first is in front;
    `dropped` are those past the most that are kept.
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
    """One request of a model that is followed: a client's, or the step of a query. `since` is its last boundary."""

    def __init__(self, trace: Trace, model: str, now: float, step: str = "") -> None:
        self.trace = trace
        self.model = model
        self.step = step
        self.began = self.since = now
        self._begun = False
        self._stage: Span | None = None  # that runs, or ran last
        self._running = False
        self._mates: set[int] = set()
        self._asked: tuple[int, float] | None = None  # the stage behind which a lookup aside was asked, and when

    def add(self, what: str, start: float, end: float, **facts: Fact) -> Span:
        """Keep a span of it."""
        return self.trace.add(Span(what, start, end, self.step, facts))

    def run(self, action: Run, now: float) -> None:
        """A stage begins; the same again, at once, is the same span: a decoder has many steps."""
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
        self._mates, self._begun, self._running = requests, True, True

    def ran(self, now: float, looked: float = 0.0) -> None:
        """The stage has ended; the last seconds of it were a lookup's."""
        assert self._stage is not None
        self._stage.end = now - looked
        self.since, self._running = now, False

    def failed(self, now: float) -> None:
        """The stage has raised."""
        assert self._stage is not None
        self._stage.facts["failed"] = True
        self.ran(now)

    def asked(self, stage: int, now: float) -> None:
        """A lookup aside is asked; what the one before it has not answered, it has missed."""
        self.missed()
        self._asked = stage, now

    def hit(self, stage: int, now: float) -> None:
        """A lookup aside has answered."""
        start = self._asked[1] if self._asked is not None and self._asked[0] == stage else now
        self._asked = None
        self.add("lookup", start, now, stage=stage, hit=True)

    def missed(self) -> None:
        """Note a lookup aside that had no answer; nobody tells when it was through."""
        if self._asked is not None:
            stage, asked = self._asked
            self.add("lookup", asked, asked, stage=stage, hit=False)
            self._asked = None

    def end(self, now: float) -> None:
        """It ends; whatever is under way, it waits for it no longer."""
        self.missed()
        if self._running:
            self.ran(now)
        elif not self._begun:
            self.add("wait", self.since, now)


class Tracer:
    """Follows requests. Show it every event and its actions; it gives back the traces of those that have ended."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._lookups = {served.spec.name: frozenset(served.spec.lookups) for served in config.models}
        self._aside = {served.spec.name for served in config.models if served.costs.aside}
        self._queries = {query.name: query for query in config.queries}
        self._paths: dict[int, Path] = {}  # by request, steps too
        self._running: dict[int, tuple[Run, list[Path]]] = {}  # by worker
        self._looks: dict[tuple[int, int], float] = {}  # since when tensors of a query and node are looked into

    @property
    def follows(self) -> bool:
        """Whether anybody is followed now."""
        return bool(self._paths)

    def observe(self, event: Event, actions: Iterable[Action], *, now: float) -> Sequence[Trace]:
        """Take in one event, which happened at `now`, and the actions that answered it."""
        if type(event) is Arrived and event.trace:
            self._arrived(event, now)
        elif not self._paths:
            return ()
        else:
            self._heard(event, now)
        ended: list[Trace] = []
        for action in actions:
            match action:
                case Run():
                    self._run(action, now)
                case Reply() if action.request in self._paths:
                    ended.append(self._ended(action, now))
                case Map() | Branch() if action.request in self._paths:
                    self._look(action, now)
                case StepEnded() if action.request in self._paths:
                    self._step_ended(action, now)
        return ended

    def _arrived(self, event: Arrived, now: float) -> None:
        for request in event.requests:
            trace = Trace(event.trace, request, event.model, now, event.deadline, event.priority)
            self._paths[request] = Path(trace, event.model, now)

    def _heard(self, event: Event, now: float) -> None:
        match event:
            case StageDone() | StageFailed():
                action, paths = self._running.pop(event.worker, (None, ()))
                for path in paths:
                    if action is not None:
                        self._ran(path, action, event, now)
            case Exited():
                for request in event.requests:
                    if request in self._paths:
                        self._paths[request].hit(event.stage, now)
            case Loaded():
                for path in self._paths.values():
                    if path.model == event.model:
                        path.add("load", max(path.began, now - event.seconds), now, pieces=len(event.pieces))
            case Branched() | MapFailed() if event.request in self._paths:
                for node in event.nodes:
                    self._looked(event.request, node, "branch" if isinstance(event, Branched) else "map", now)
            case Mapped() if event.request in self._paths:
                self._looked(event.request, event.node, "map", now)

    def _run(self, action: Run, now: float) -> None:
        paths = [self._paths[request] for request in action.requests if request in self._paths]
        for path in paths:
            path.run(action, now)
        if paths:
            self._running[action.worker] = action, paths

    def _ran(self, path: Path, action: Run, event: StageDone | StageFailed, now: float) -> None:
        """Note that a stage has ended, and what the lookup behind it said."""
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
        """Tensors of a query are looked into; a step that may begin is followed from now on."""
        if isinstance(action, Branch):
            self._looks.update({(action.request, node): now for node in action.nodes})
            return
        self._looks[action.request, action.node] = now
        nodes = self._queries[action.query].nodes
        if action.node < len(nodes):
            node = nodes[action.node]
            trace, model = self._paths[action.request].trace, node.models[action.chosen[action.node]]
            self._paths[action.request + 1 + action.node] = Path(trace, model, now, node.name)

    def _looked(self, request: int, node: int, what: str, now: float) -> None:
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
        for node in range(0 if query is None else len(query.nodes) + 1):  # some were mapped and never begun
            self._paths.pop(action.request + 1 + node, None)
            self._looks.pop((action.request, node), None)
        trace.ended, trace.outcome = now, Outcome(action.outcome).name.lower()
        trace.left_at, trace.slack = action.stage, action.slack
        return trace
