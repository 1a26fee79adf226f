"""Measures what the scheduler costs on one core, by policy and queue length: a boundary, a decision, an event.

In CPU seconds of the thread, which are meaningful on a busy machine as well, and beside them by the clock. Also what an
event costs if many models are served and few have requests.
"""

import time
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median

from latebind.batching.costs import Estimate
from latebind.batching.decisions import Decision
from latebind.batching.policy import BatchPolicy, make_policy
from latebind.batching.requests import ModelView, Queue
from latebind.batching.workers import BatchTable, WorkView
from latebind.cli.console import Row, Rows
from latebind.domain.actions import Action, Load, Reply, Run
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts
from latebind.domain.events import Arrived, Event, Loaded, StageDone
from latebind.domain.model import ModelSpec
from latebind.scheduler import Scheduler
from research.policies import BATCHING

STAGES = 8
LOOKUPS = {2: 0.3, 4: 0.2}  # stages with a lookup behind them, and the share of requests that leaves there
SILENT = 0.5  # of the lookups answer nobody, so that boundaries behind them are seen at which nobody leaves
HITS = 0.3  # of a batch that the others answer
MAX_BATCH = 16
BACKLOGS = (0, 10, 1000)
SKIPPED = 0.1  # of the events, the first: what is kept by size of batch is worked out then
BUSY, ASKED = 4, 8  # of many models so many are asked for, by so many requests each, all the time
COUNTS = (BUSY, 200, 2000)
MANY = ("graph", "lazy+", "late")  # policies that are tried with many models


@dataclass(slots=True)
class Watch:
    """Durations of what it times, in CPU seconds of the thread and by the clock; reading both costs 0.2 us."""

    times: list[tuple[float, float]] = field(default_factory=list)
    begun: tuple[float, float] = (0.0, 0.0)

    def begin(self) -> None:
        """Read both clocks."""
        self.begun = time.thread_time(), time.perf_counter()

    def end(self) -> tuple[float, float]:
        """Return what was taken since."""
        return time.thread_time() - self.begun[0], time.perf_counter() - self.begun[1]

    def microseconds(self) -> str:
        """Return the mean CPU time, and the median by the clock; a dash if nothing was measured."""
        if not self.times:
            return "-"
        cpu, clock = zip(*self.times[int(SKIPPED * len(self.times)) :], strict=True)
        return f"{fmean(cpu) * 1e6:.1f} ({median(clock) * 1e6:.1f})"


class Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: BatchPolicy) -> None:
        self._policy = policy
        self.watch = Watch()
        self.order = policy.order
        self.counts_exits = policy.counts_exits

    def batch_limit(self, model: ModelView) -> int:
        """Return what the policy says."""
        return self._policy.batch_limit(model)

    def table(self) -> BatchTable:
        """Return the policy's table."""
        return self._policy.table()

    def decide(self, view: WorkView, now: float) -> Decision:
        """Time the policy's decision."""
        self.watch.begin()
        decision = self._policy.decide(view, now)
        self.watch.times.append(self.watch.end())
        return decision


def speed_row(policy: str, *, waiting: int, events: int, seed: int = 0) -> Row:
    """Measure one policy with `waiting` requests in the queue throughout.

    A boundary is one in the middle of a batch of several, without anybody leaving, its decision included: behind a
    stage without a lookup, and behind one, where somebody could have left. "beside" are those where others rest at a
    stage, so that there is a choice though nobody waits. A decision is one of the policy alone, where it is asked.
    """
    costs = ModelCosts(tuple(Curve((1, MAX_BATCH), (3e-4, 3e-3)) for _ in range(STAGES)), {}, LOOKUPS)
    spec = ModelSpec("net", "1", (), (), STAGES, MAX_BATCH, tuple(LOOKUPS))
    model = ServedModel(spec, costs, waiting + 10 * MAX_BATCH)
    config = SchedulerConfig((model,), 1, PolicyConfig(BATCHING[policy], MAX_BATCH))
    batch = make_policy(config.policy).batch_limit(ModelView(spec, Estimate(spec, costs), Queue()))
    timed = Scheduler(config)
    timed.policy = asked = Timed(timed.policy)
    watches = _play(Scheduler(config), model, waiting, batch, events, Random(seed))
    _play(timed, model, waiting, batch, events, Random(seed))
    row: Row = {"policy": policy, "largest batch": batch, "waiting": waiting}
    row |= {f"boundary us, {name}": watch.microseconds() for name, watch in watches.items()}
    return row | {"decision of it us": asked.watch.microseconds()}


def _play(
    scheduler: Scheduler, model: ServedModel, waiting: int, batch: int, events: int, random: Random
) -> dict[str, Watch]:
    """Play closed-loop traffic: whoever is answered is replaced; `HITS` leave where a lookup answers anybody."""
    watches = {name: Watch() for name in ("no lookup", "lookup", "beside")}
    last = backlog = waiting + batch
    running = _launched(scheduler.handle(_arrival(0, backlog), 0.0))
    now, handled, left = 0.0, 0, 0
    while handled < events:
        now += model.costs.step(running.stage, len(running.requests))
        looked = running.stage in LOOKUPS
        hits = looked and random.random() >= SILENT
        exited = tuple(i for i in running.requests if hits and random.random() < HITS)
        leaving = len(running.requests) if running.stage == STAGES - 1 else len(exited)
        left += leaving
        coming = left if waiting or left == batch else 0  # where none is to wait, they come when all have gone
        alone = scheduler.stats()["running"] == len(running.requests)
        if coming:
            scheduler.handle(_arrival(last, coming, now), now)
        last, left, handled = last + coming, left - coming, handled + 1 + coming
        watch = Watch()
        watch.begin()
        actions = scheduler.handle(StageDone(running.worker, exited), now)
        took, following = watch.end(), _launched(actions)
        if not leaving and len(running.requests) > 1:
            alone = alone and scheduler.stats()["running"] == len(following.requests)
            watches["beside" if not alone else "lookup" if looked else "no lookup"].times.append(took)
        running = following
    scheduler.check()
    return watches


def _launched(actions: list[Action]) -> Run:
    return next(action for action in actions if isinstance(action, Run))


def _arrival(first: int, count: int, now: float = 0.0) -> Arrived:
    numbers = tuple(range(first, first + count))
    return Arrived("net", now + 1e6, numbers, numbers)


# Many models ----------------------------------------------------------------------------------------------------------


def many_rows(*, events: int) -> Rows:
    """Return the mean microseconds of an event with few and with many models, in limited memory or without bound."""
    return [
        {
            "policy": policy,
            "memory": "limited" if memory else "no bound",
            "models": models,
            "us an event": f"{1e6 * many(policy, models, memory, events):.1f}",
        }
        for policy in MANY
        for memory in (False, True)
        for models in COUNTS
    ]


def many(policy: str, models: int, memory: bool, events: int) -> float:
    """Return the mean seconds of an event in closed-loop traffic, where each answered request is replaced."""
    crowd = _Crowd(policy, models, memory)
    crowd.play(events // 10)
    crowd.seconds, crowd.handled = 0.0, 0
    crowd.play(events)
    crowd.scheduler.check()
    return crowd.seconds / crowd.handled


class _Crowd:
    """A scheduler, and the clients that keep some of its models busy."""

    def __init__(self, policy: str, models: int, memory: bool) -> None:
        self._costs = ModelCosts((Curve((1, 16), (3e-4, 3e-3)),) * BUSY, {}, {1: 0.3})
        footprint = Footprint((1,) * BUSY, (0.1,) * BUSY)
        specs = [ModelSpec(f"net-{number:04}", "1", (), (), BUSY, 16, (1,)) for number in range(models)]
        served = tuple(ServedModel(spec, self._costs, 1000, footprint) for spec in specs)
        residency = ResidencyConfig(models * BUSY if memory else 0)
        self.scheduler = Scheduler(SchedulerConfig(served, 1, PolicyConfig(policy), residency=residency))
        self.seconds, self.handled = 0.0, 0
        self._now, self._last = 0.0, 0
        self._running: Run | None = None
        for place in range(BUSY):
            self._come(specs[models * place // BUSY].name, ASKED)

    def play(self, events: int) -> None:
        """Let stages end until `events` events have been handled."""
        while self.handled < events:
            assert self._running is not None, "nobody works"
            running = self._running
            self._now += self._costs.step(running.stage, len(running.requests))
            self._tell(StageDone(running.worker))

    def _come(self, name: str, count: int) -> None:
        numbers = tuple(range(self._last, self._last + count))
        self._last += count
        self._tell(Arrived(name, self._now + 1e6, numbers, numbers))

    def _tell(self, event: Event) -> None:
        begun = time.thread_time()
        actions = self.scheduler.handle(event, self._now)
        self.seconds += time.thread_time() - begun
        self.handled += 1
        left: dict[str, int] = {}
        for action in actions:
            if isinstance(action, Run):
                self._running = action
            elif isinstance(action, Reply):
                left[action.model] = left.get(action.model, 0) + 1
        for action in actions:
            if isinstance(action, Load):
                self._tell(Loaded(action.model, action.pieces, 1.0))
        for name, count in left.items():
            self._come(name, count)
