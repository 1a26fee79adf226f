"""Counts and histograms made only from events and actions, so that live and simulated figures mean the same. Pure."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from latebind.domain.actions import Action, Evict, Load, Map, Outcome, Reply, Run, StepEnded
from latebind.domain.config import SchedulerConfig
from latebind.domain.costs import Footprint
from latebind.domain.events import Arrived, Event, Loaded, LoadFailed, StageDone, StageFailed
from latebind.domain.model import StageKind
from latebind.domain.query import NOT_RUN, Node

SECONDS_BUCKETS = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip
ANSWERED = Outcome.ANSWERED

SLACK_BUCKETS = (0.0, *SECONDS_BUCKETS)  # the first holds requests that could not be in time


class Histogram:
    """Counts of values in seconds by upper bound; the last count is of all values above the last bound."""

    def __init__(self, bounds: Sequence[float] = SECONDS_BUCKETS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Count one value in seconds."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def snapshot(self) -> dict[str, Any]:
        """Return bounds, counts (one more than bounds), sum and count as plain types."""
        return {"le": list(self._bounds), "counts": list(self._counts), "sum": self._sum, "count": sum(self._counts)}


class TokenMetrics:
    """Counts runs of a decoder, each of which writes one token of every request in it."""

    def __init__(self) -> None:
        self.arrived: dict[int, float] = {}  # when requests came that have no token yet
        self._tokens = 0
        self._first = Histogram()

    def written(self, requests: Sequence[int], now: float) -> None:
        """Count the tokens of a run that has ended."""
        self._tokens += len(requests)
        for request in requests:
            arrived = self.arrived.pop(request, None)
            if arrived is not None:
                self._first.add(now - arrived)

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain types."""
        return {"tokens": self._tokens, "first_token_seconds": self._first.snapshot()}


class MemoryMetrics:
    """Loads and evictions of one model. Bytes count from the end of their load until their `Evict` action."""

    def __init__(self, footprint: Footprint) -> None:
        self._sizes = dict(enumerate(footprint.sizes))
        self._resident: set[int] = set()
        self.loads = self.evictions = self.failures = 0
        self.read = self.cached = 0  # bytes
        self.seconds = Histogram()

    def loaded(self, event: Loaded) -> None:
        """Count pieces that have been loaded."""
        self._sizes.update(zip(event.pieces, event.sizes, strict=False))
        self._resident.update(event.pieces)
        self.read += event.read
        self.cached += event.cached
        self.seconds.add(event.seconds)

    def evicted(self, action: Evict) -> None:
        """Count pieces that are evicted."""
        self._resident.difference_update(action.pieces)
        self.evictions += 1

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain types."""
        return {
            "resident_bytes": sum([self._sizes[piece] for piece in self._resident]),
            "bytes": sum(self._sizes.values()),
            "loads": self.loads,
            "evictions": self.evictions,
            "failures": self.failures,
            "read_bytes": self.read,
            "cached_bytes": self.cached,
            "load_seconds": self.seconds.snapshot(),
        }


class ModelMetrics:
    """The figures of one model, including requests that are steps of queries; or of one query, with nodes as stages."""

    def __init__(self, stages: int, *, writes: bool = False) -> None:
        self.pending = 0
        self.stages = stages
        self.tokens = TokenMetrics() if writes else None
        self._outcomes = [0] * len(Outcome)
        self._left_at = [0] * stages
        self.batches: Counter[int] = Counter()
        self.stage_runs = 0
        self.row_stages = 0
        self.stage_failures = 0
        self.sizes: dict[int, list[float]] = {}  # by batch size: stage runs that have ended, and their seconds
        self._latency = Histogram()
        self._queue = Histogram()
        self._slack = Histogram(SLACK_BUCKETS)
        self._failing = 0.0  # seconds
        self.last: float | None = None

    def ran(self, action: Run) -> None:
        """Count one stage run of a sub-batch; where it is the first stage, its size counts as a batch size."""
        size = len(action.requests)
        self.stage_runs += 1
        self.row_stages += size
        if action.stage == 0:
            self.batches[size] += 1

    def took(self, size: int, seconds: float) -> None:
        """Count one stage run of `size` requests that has ended, and its seconds."""
        entry = self.sizes.get(size)
        if entry is None:
            entry = self.sizes[size] = [0, 0.0]
        entry[0] += 1
        entry[1] += seconds

    def ended(self, action: Reply | StepEnded, now: float) -> None:
        """Count the end of one request, or of a step of a query that this model answered."""
        self._outcomes[action.outcome] += 1
        if self.tokens is not None:
            self.tokens.arrived.pop(action.request, None)
        if action.slack is not None:
            self._slack.add(action.slack)
        if action.outcome is not ANSWERED:
            self._failing += action.waited + action.ran
            return
        self.last = now
        self._latency.add(action.waited + action.ran)
        self._queue.add(action.waited)
        if action.stage >= 0:  # a query may have reached no node
            self._left_at[action.stage] += 1

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain types."""
        tokens = {} if self.tokens is None else self.tokens.snapshot()
        return {
            **tokens,
            "requests": {outcome.name.lower(): self._outcomes[outcome] for outcome in Outcome},
            "left_at": list(self._left_at),
            "batches": {str(size): count for size, count in sorted(self.batches.items())},
            "stage_runs": self.stage_runs,
            "row_stages": self.row_stages,
            "stage_failures": self.stage_failures,
            "runs": {str(size): count for size, (count, _) in sorted(self.sizes.items())},
            "run_seconds": {str(size): seconds for size, (_, seconds) in sorted(self.sizes.items())},
            "latency_seconds": self._latency.snapshot(),
            "queue_seconds": self._queue.snapshot(),
            "slack_seconds": self._slack.snapshot(),
            "failed_seconds": self._failing,
            "last": self.last,
            "pending": self.pending,
        }


class StepMetrics:
    """The figures of one step of a query. Only steps that answered count."""

    def __init__(self, node: Node) -> None:
        self.name = node.name
        self.replanned = 0
        self.answered = dict.fromkeys(node.models, 0)
        self.budget = 0.0
        self.spent = Histogram()

    def ended(self, action: StepEnded) -> None:
        """Count the end of one step."""
        if action.outcome is ANSWERED:
            self.answered[action.model] += 1
            self.budget += action.budget
            self.spent.add(action.spent)

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain types."""
        return {
            "answered": dict(self.answered),
            "replanned": self.replanned,
            "budget_seconds": self.budget,
            "spent_seconds": self.spent.snapshot(),
        }


class Metrics:
    """Counts from the events that a scheduler handles and the actions that it returns."""

    def __init__(self, config: SchedulerConfig) -> None:
        specs = [*(served.spec for served in config.models), *(query.spec for query in config.queries)]
        decoder = StageKind.DECODER
        self._models = {s.name: ModelMetrics(s.stages, writes=s.kind(s.stages - 1) is decoder) for s in specs}
        self._steps = {query.name: tuple(StepMetrics(node) for node in query.nodes) for query in config.queries}
        self._replan = {query.name for query in config.queries if query.planner.replan}
        self._running: dict[int, tuple[ModelMetrics, Run, float]] = {}  # by worker, and since when
        self._budget = config.residency.budget
        self._memory = {served.spec.name: MemoryMetrics(served.footprint) for served in config.models}

    def observe(self, event: Event, actions: Iterable[Action], *, now: float) -> None:
        """Count one event, which happened at `now` (seconds), and its actions."""
        match event:  # the most frequent kinds first, here and below
            case StageDone() | StageFailed():
                self._stage_ended(event, now)
            case Arrived():
                model = self._models[event.model]
                model.pending += len(event.requests)
                if model.tokens is not None:
                    model.tokens.arrived.update(dict.fromkeys(event.requests, now))
            case Loaded():
                self._memory[event.model].loaded(event)
            case LoadFailed():
                self._memory[event.model].failures += 1
        for action in actions:
            self._count(action, now)

    def _count(self, action: Action, now: float) -> None:
        match action:
            case Run():
                model = self._models[action.model]
                model.ran(action)
                self._running[action.worker] = model, action, now
            case Reply():
                self._models[action.model].pending -= 1
                self._models[action.model].ended(action, now)
            case StepEnded():
                self._models[action.model].ended(action, now)
                self._steps[action.query][action.node].ended(action)
            case Map():
                # Steps whose model was picked when they started, after another step had started.
                steps, chosen = self._steps[action.query], action.chosen
                if action.query in self._replan and action.node < len(steps):
                    steps[action.node].replanned += len(action.requests) * (len(chosen) - chosen.count(NOT_RUN) > 1)
            case Load():
                self._memory[action.model].loads += 1
            case Evict():
                self._memory[action.model].evicted(action)

    def _stage_ended(self, event: StageDone | StageFailed, now: float) -> None:
        ran = self._running.pop(event.worker, None)
        if ran is None:  # it started before this object counted
            return
        model, run, started = ran
        model.took(len(run.requests), now - started)
        if isinstance(event, StageFailed):
            model.stage_failures += 1
        elif model.tokens is not None and run.stage + 1 == model.stages:
            model.tokens.written(run.requests, now)

    def snapshot(self) -> dict[str, Any]:
        """Return the figures of every model and query as plain types, ready for JSON; of memory where it is limited."""
        found: dict[str, Any] = {"models": {name: model.snapshot() for name, model in self._models.items()}}
        if self._steps:
            found["steps"] = {
                query: {step.name: step.snapshot() for step in steps} for query, steps in self._steps.items()
            }
        if self._budget:
            models = {name: memory.snapshot() for name, memory in self._memory.items()}
            found["memory"] = {"budget_bytes": self._budget, "models": models}
        return found
