"""Counts and histograms made only from events and actions, so that live and simulated figures mean the same. Pure.

The fields of the classes are the names of the figures; `server.gateway` describes them for readers.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from latebind.domain.actions import Action, Evict, Load, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.events import Arrived, Event, Loaded, LoadFailed, Mapped, StageDone, StageFailed
from latebind.domain.model import StageKind
from latebind.domain.query import NOT_RUN

SECONDS_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
ANSWERED = Outcome.ANSWERED
NAMES = [outcome.name.lower() for outcome in Outcome]


@dataclass
class Histogram:
    """Counts of values in seconds by upper bound; the last count is of all values above the last bound."""

    le: list[float] = field(default_factory=lambda: list(SECONDS_BUCKETS))
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.le) + 1)

    def add(self, value: float) -> None:
        """Count one value in seconds."""
        self.counts[bisect_left(self.le, value)] += 1
        self.sum += value
        self.count += 1


@dataclass
class ModelMetrics:
    """The figures of one model, including requests that are steps of queries; or of one query, with nodes as stages.

    `batches`, `runs` and `run_seconds` are by batch size. Requests that have started are `promised` a fidelity each,
    where it follows the load, or the network is in less than full precision. `tokens` and `first_token_seconds` are of
    models with a decoder, each of whose runs writes one token of every request in it. The last three fields are of
    models whose rows differ in length: those of answered requests, those of the rows of all runs, and those that these
    were padded to.
    """

    left_at: list[int]  # for each stage
    requests: dict[str, int] = field(default_factory=lambda: dict.fromkeys(NAMES, 0))
    pending: int = 0
    batches: dict[str, int] = field(default_factory=dict)
    promised: dict[str, int] = field(default_factory=dict)
    stage_runs: int = 0
    row_stages: int = 0
    stage_failures: int = 0
    runs: dict[str, int] = field(default_factory=dict)
    run_seconds: dict[str, float] = field(default_factory=dict)
    latency_seconds: Histogram = field(default_factory=Histogram)
    queue_seconds: Histogram = field(default_factory=Histogram)
    slack_seconds: Histogram = field(default_factory=lambda: Histogram([0.0, *SECONDS_BUCKETS]))  # 0: never in time
    failed_seconds: float = 0.0
    last: float | None = None
    tokens: int | None = None
    first_token_seconds: Histogram = field(default_factory=Histogram)
    lengths: int | None = None
    run_lengths: int = 0
    padded_lengths: int = 0

    def ran(self, action: Run, fidelities: Sequence[float]) -> None:
        """Count one stage run of a sub-batch; where it is the first stage, its size counts as a batch size.

        `fidelities` are those of the levels of the model's operating curve, or that of all its answers, or none.
        """
        self.stage_runs += 1
        self.row_stages += len(action.requests)
        if action.stage == 0:
            size = str(len(action.requests))
            self.batches[size] = self.batches.get(size, 0) + 1
            levels = action.levels or (0,) * len(action.requests)
            for level in levels if fidelities else ():
                promised = f"{fidelities[level]:g}"
                self.promised[promised] = self.promised.get(promised, 0) + 1

    def took(self, size: str, seconds: float) -> None:
        """Count one stage run of `size` requests that has ended, and its seconds."""
        self.runs[size] = self.runs.get(size, 0) + 1
        self.run_seconds[size] = self.run_seconds.get(size, 0.0) + seconds

    def ended(self, action: Reply | StepEnded, now: float) -> None:
        """Count the end of one request, or of a step of a query that this model answered."""
        self.requests[NAMES[action.outcome]] += 1
        if action.slack is not None:
            self.slack_seconds.add(action.slack)
        if action.outcome is not ANSWERED:
            self.failed_seconds += action.waited + action.ran
            return
        self.last = now
        self.latency_seconds.add(action.waited + action.ran)
        self.queue_seconds.add(action.waited)
        if action.stage >= 0:  # a query may have reached no node
            self.left_at[action.stage] += 1

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain types."""
        found = asdict(self)
        if self.tokens is None:
            del found["tokens"], found["first_token_seconds"]
        if self.lengths is None:
            del found["lengths"], found["run_lengths"], found["padded_lengths"]
        return found


@dataclass
class MemoryMetrics:
    """Loads and evictions of one model. Bytes count from the end of their load until their `Evict` action."""

    bytes: int
    resident_bytes: int = 0
    loads: int = 0
    evictions: int = 0
    failures: int = 0
    read_bytes: int = 0
    cached_bytes: int = 0
    load_seconds: Histogram = field(default_factory=Histogram)


@dataclass
class StepMetrics:
    """The figures of one step of a query. Only steps that answered count."""

    answered: dict[str, int]
    replanned: int = 0
    budget_seconds: float = 0.0
    spent_seconds: Histogram = field(default_factory=Histogram)


class Metrics:
    """Counts from the events that a scheduler handles and the actions that it returns."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._models: dict[str, ModelMetrics] = {}
        for spec in [*(served.spec for served in config.models), *(query.spec for query in config.queries)]:
            writes = spec.kind(spec.stages - 1) is StageKind.DECODER
            lengths = 0 if spec.dims else None
            self._models[spec.name] = ModelMetrics([0] * spec.stages, tokens=0 if writes else None, lengths=lengths)
        self._steps = {
            query.name: {node.name: StepMetrics(dict.fromkeys(node.models, 0)) for node in query.nodes}
            for query in config.queries
        }
        self._fidelities: dict[str, list[float]] = {}
        for served in config.models:
            promised = served.costs.levels or (() if served.spec.promised is None else (served.spec.promised,))
            self._fidelities[served.spec.name] = [one.fidelity for one in promised]
        self._packs = {served.spec.name for served in config.models if served.spec.packs}
        self._replan = {query.name for query in config.queries if query.planner.replan}
        self._running: dict[int, tuple[ModelMetrics, Run, float]] = {}  # by worker, and since when
        self._silent: dict[int, float] = {}  # requests that have written no token yet, and when they arrived
        self._lengths: dict[int, int] = {}  # of requests for models whose rows differ in length
        self._budget = config.residency.budget
        self._sizes = {served.spec.name: dict(enumerate(served.footprint.sizes)) for served in config.models}
        self._resident: dict[str, set[int]] = {name: set() for name in self._sizes}
        self._memory = {name: MemoryMetrics(sum(sizes.values())) for name, sizes in self._sizes.items()}

    def observe(self, event: Event, actions: Iterable[Action], *, now: float) -> None:
        """Count one event, which happened at `now` (seconds), and its actions."""
        match event:  # the most frequent kinds first, here and below
            case StageDone() | StageFailed():
                self._stage_ended(event, now)
            case Arrived():
                model = self._models[event.model]
                model.pending += len(event.requests)
                if model.tokens is not None:
                    self._silent.update(dict.fromkeys(event.requests, now))
                if model.lengths is not None:
                    self._lengths.update(zip(event.requests, event.inputs, strict=False))
            case Mapped() if event.inputs:  # the lengths of steps
                steps = [request + 1 + event.node for request in event.requests]
                self._lengths.update(zip(steps, event.inputs, strict=True))
            case Loaded():
                self._loaded(event)
            case LoadFailed():
                self._memory[event.model].failures += 1
        for action in actions:
            self._count(action, now)

    def _count(self, action: Action, now: float) -> None:
        match action:
            case Run():
                model = self._models[action.model]
                model.ran(action, self._fidelities.get(action.model, ()))
                self._running[action.worker] = model, action, now
                if model.lengths is not None and (model.tokens is None or not action.stage):  # tokens have no length
                    lengths = [self._lengths.get(request, 1) for request in action.requests]
                    own, packs = sum(lengths), action.model in self._packs
                    model.run_lengths += own
                    model.padded_lengths += own if packs else max(lengths) * len(lengths)
            case Reply():
                model = self._models[action.model]
                model.pending -= 1
                model.ended(action, now)
                if self._silent:
                    self._silent.pop(action.request, None)
                if self._lengths:
                    nodes = len(self._steps.get(action.model, ()))
                    self._length_ended(model, action.request, action.outcome, nodes)
            case StepEnded():
                model = self._models[action.model]
                model.ended(action, now)
                if self._lengths:
                    self._length_ended(model, action.request + 1 + action.node, action.outcome)
                if action.outcome is ANSWERED:
                    step = list(self._steps[action.query].values())[action.node]
                    step.answered[action.model] += 1
                    step.budget_seconds += action.budget
                    step.spent_seconds.add(action.spent)
            case Map():
                # Steps whose model was picked when they started, after another step had started.
                steps, chosen = list(self._steps[action.query].values()), action.chosen
                if action.query in self._replan and action.node < len(steps):
                    steps[action.node].replanned += len(action.requests) * (len(chosen) - chosen.count(NOT_RUN) > 1)
            case Load():
                self._memory[action.model].loads += 1
            case Evict():
                self._memory[action.model].evictions += 1
                self._resident[action.model].difference_update(action.pieces)

    def _length_ended(self, model: ModelMetrics, request: int, outcome: Outcome, steps: int = 0) -> None:
        """Count the length of a request that has ended, and forget it and those of its steps: some never began."""
        length = self._lengths.pop(request, 1)
        for step in range(request + 1, request + 1 + steps):
            self._lengths.pop(step, None)
        if model.lengths is not None and outcome is ANSWERED:
            model.lengths += length

    def _stage_ended(self, event: StageDone | StageFailed, now: float) -> None:
        ran = self._running.pop(event.worker, None)
        if ran is None:  # it started before these metrics did
            return
        model, run, started = ran
        model.took(str(len(run.requests)), now - started)
        if isinstance(event, StageFailed):
            model.stage_failures += 1
        elif model.tokens is not None and run.stage + 1 == len(model.left_at):
            model.tokens += len(run.requests)
            for request in run.requests:
                arrived = self._silent.pop(request, None)
                if arrived is not None:
                    model.first_token_seconds.add(now - arrived)

    def _loaded(self, event: Loaded) -> None:
        memory, sizes = self._memory[event.model], self._sizes[event.model]
        sizes.update(zip(event.pieces, event.sizes, strict=False))
        self._resident[event.model].update(event.pieces)
        memory.bytes = sum(sizes.values())
        memory.read_bytes += event.read
        memory.cached_bytes += event.cached
        memory.load_seconds.add(event.seconds)

    def snapshot(self) -> dict[str, Any]:
        """Return the figures of every model and query as plain types, ready for JSON; of memory where it is limited."""
        found: dict[str, Any] = {"models": {name: model.snapshot() for name, model in self._models.items()}}
        if self._steps:
            found["steps"] = {
                query: {name: asdict(step) for name, step in steps.items()} for query, steps in self._steps.items()
            }
        if self._budget:
            for name, memory in self._memory.items():
                memory.resident_bytes = sum([self._sizes[name][piece] for piece in self._resident[name]])
            models = {name: asdict(memory) for name, memory in self._memory.items()}
            found["memory"] = {"budget_bytes": self._budget, "models": models}
        return found
