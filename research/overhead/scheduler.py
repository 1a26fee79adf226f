"""Measures what the scheduler costs on one core, by policy and queue length: a boundary, a decision, an event.

In CPU seconds of the thread, which are meaningful on a busy machine as well, and beside them by the clock. Also what an
event costs if many models are served and few have requests.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

from latebind.batching.costs import Estimate
from latebind.batching.decisions import Decision
from latebind.batching.policy import BatchPolicy, make_policy
from latebind.batching.requests import ModelView, Queue
from latebind.batching.workers import BatchTable, WorkView
from latebind.cli.console import Rows
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
READINGS = 1000  # of both clocks, for what a reading costs
SKIPPED = 0.1  # of the events, the first: what is kept by size of batch is worked out then
BUSY, ASKED = 4, 8  # of many models so many are asked for, by so many requests each, all the time
COUNTS = (BUSY, 200, 2000)
MANY = ("graph", "lazy+", "late")  # policies that are tried with many models


@dataclass(frozen=True, slots=True)
class Spent:
    """Mean CPU seconds and the median by the clock, both without the cost of reading them."""

    cpu: float
    clock: float

    def microseconds(self) -> str:
        """Return both as text, or a dash if nothing was measured."""
        return "-" if not self.clock else f"{self.cpu * 1e6:.1f} ({self.clock * 1e6:.1f})"


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement with so many waiting throughout, at the largest batch that the policy forms.

    `events` of both kinds (arrivals and stage boundaries) are handled in a second of CPU. A `boundary` is one in the
    middle of a batch of several, between `STAGES` some of which have a lookup behind them, without anybody leaving, its
    decision included: the mean of all, and apart those behind a stage without a lookup (`plain`) and behind a `lookup`,
    where somebody could have left. Nobody rests there; `beside` is one where others rest at a stage, before it or
    after, so that there is a choice though nobody waits. A `decision` is one of the policy alone, where it is asked: of
    `late` where a batch begins, behind a lookup, and where somebody waits; of others not where there is no choice.
    """

    policy: str
    waiting: int
    batch: int
    events: float
    boundary: Spent
    plain: Spent
    lookup: Spent
    beside: Spent
    decision: Spent


@dataclass(slots=True)
class _Watch:
    """Collects the durations of what it times."""

    empty: Spent
    times: list[tuple[float, float]] = field(default_factory=list)

    def spent(self) -> Spent:
        """Return the durations of all rounds but the first."""
        some = self.times[int(SKIPPED * len(self.times)) :] or [(0.0, 0.0)]
        cpu, clock = sum(one for one, _ in some) / len(some), median([one for _, one in some])
        return Spent(max(0.0, cpu - self.empty.cpu), max(0.0, clock - self.empty.clock))


class _Timed:
    """A policy whose decisions are timed."""

    def __init__(self, policy: BatchPolicy, watch: _Watch) -> None:
        self._policy = policy
        self.watch = watch
        self.order = policy.order
        self.counts_exits = policy.counts_exits

    def batch_limit(self, model: ModelView) -> int:
        return self._policy.batch_limit(model)

    def table(self) -> BatchTable:
        return self._policy.table()

    def decide(self, view: WorkView, now: float) -> Decision:
        begun, cpu = time.perf_counter(), time.thread_time()
        decision = self._policy.decide(view, now)
        self.watch.times.append((time.thread_time() - cpu, time.perf_counter() - begun))
        return decision


def measure(policy: str, *, waiting: int, events: int, rounds: int, seed: int) -> Speed:
    """Measure one policy with `waiting` requests in the queue throughout."""
    config = _config(policy, waiting)
    (model,) = config.models
    batch = make_policy(config.policy).batch_limit(ModelView(model.spec, Estimate(model.spec, model.costs), Queue()))
    empty, found = _reading(), []
    for number in range(rounds):
        bare, timed = Scheduler(config), Scheduler(config)
        timed.policy = policy_asked = _Timed(timed.policy, _Watch(empty))
        speed, *boundaries = _play(bare, model, waiting, batch, events, Random(seed + number), empty)
        _play(timed, model, waiting, batch, events, Random(seed + number), empty)
        found.append((speed, *boundaries, policy_asked.watch.spent()))
    speeds, *spent = zip(*found, strict=True)
    return Speed(policy, waiting, batch, max(speeds), *[_least(some) for some in spent])


def _least(some: Sequence[Spent]) -> Spent:
    return Spent(min([one.cpu for one in some]), min([one.clock for one in some]))


def _reading() -> Spent:
    """Return what reading both clocks adds to a measured duration."""
    cpu, clock = [], []
    for _ in range(READINGS):
        begun, before = time.perf_counter(), time.thread_time()
        cpu.append(time.thread_time() - before)
        clock.append(time.perf_counter() - begun)
    return Spent(median(cpu), median(clock))


def _play(
    scheduler: Scheduler,
    model: ServedModel,
    waiting: int,
    batch: int,
    events: int,
    random: Random,
    empty: Spent,
) -> tuple[float, Spent, Spent, Spent, Spent]:
    """Play closed-loop traffic: whoever is answered is replaced; `HITS` leave where a lookup answers anybody.

    Return the events handled in a second of CPU, and what the boundaries took where nobody left: all where nobody
    rested, of these without and with a lookup, and those beside others who rested.
    """
    every, plain, lookup, beside = (_Watch(empty) for _ in range(4))
    last = backlog = waiting + batch
    running = _launched(scheduler.handle(_arrival(0, backlog), 0.0))
    now, handled, seconds, left = 0.0, 0, 0.0, 0
    while handled < events:
        now += model.costs.step(running.stage, len(running.requests))
        looked = running.stage in LOOKUPS
        hits = looked and random.random() >= SILENT
        exited = tuple(i for i in running.requests if hits and random.random() < HITS)
        done = StageDone(running.worker, exited)
        leaving = len(running.requests) if running.stage == STAGES - 1 else len(exited)
        left += leaving
        coming = left if waiting or left == batch else 0  # where none is to wait, they come when all have gone
        arrivals = [_arrival(last, coming, now)] if coming else []
        last, left = last + coming, left - coming
        alone = scheduler.stats()["running"] == len(running.requests)
        begun = time.thread_time()
        for arrival in arrivals:
            scheduler.handle(arrival, now)
        came, between = time.thread_time(), time.perf_counter()
        actions = scheduler.handle(done, now)
        ended, clock = time.thread_time(), time.perf_counter() - between
        seconds += ended - begun - empty.cpu
        handled += 1 + coming
        if not leaving and len(running.requests) > 1:
            alone = alone and scheduler.stats()["running"] == len(_launched(actions).requests)
            for watch in (every, lookup if looked else plain) if alone else (beside,):
                watch.times.append((ended - came, clock))
        running = _launched(actions)
    scheduler.check()
    return handled / seconds, every.spent(), plain.spent(), lookup.spent(), beside.spent()


def _launched(actions: list[Action]) -> Run:
    return next(action for action in actions if isinstance(action, Run))


def _arrival(first: int, count: int, now: float = 0.0) -> Arrived:
    numbers = tuple(range(first, first + count))
    return Arrived("net", now + 1e6, numbers, numbers)


def _config(policy: str, waiting: int) -> SchedulerConfig:
    costs = ModelCosts(tuple(Curve((1, MAX_BATCH), (3e-4, 3e-3)) for _ in range(STAGES)), {}, LOOKUPS)
    spec = ModelSpec("net", "1", (), (), STAGES, MAX_BATCH, tuple(LOOKUPS))
    model = ServedModel(spec, costs, waiting + 10 * MAX_BATCH)
    return SchedulerConfig((model,), 1, PolicyConfig(BATCHING[policy], MAX_BATCH))


def speed_row(speed: Speed) -> dict[str, object]:
    """Return a measurement as a row of a table."""
    return {
        "policy": speed.policy,
        "largest batch": speed.batch,
        "waiting": speed.waiting,
        "events a second": f"{speed.events:,.0f}",
        "boundary us": speed.boundary.microseconds(),
        "without lookup": speed.plain.microseconds(),
        "behind one": speed.lookup.microseconds(),
        "where others rest": speed.beside.microseconds(),
        "decision of it us": speed.decision.microseconds(),
    }


def many_rows(*, events: int, rounds: int) -> Rows:
    """Return the median microseconds of an event with few and with many models, in limited memory or without bound."""
    return [
        {
            "policy": policy,
            "memory": "limited" if memory else "no bound",
            "models": models,
            "us an event": f"{1e6 * median([many(policy, models, memory, events) for _ in range(rounds)]):.1f}",
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
        served = [self._model(f"net-{number:04}") for number in range(models)]
        residency = ResidencyConfig(models * BUSY if memory else 0)
        self.scheduler = Scheduler(SchedulerConfig(tuple(served), 1, PolicyConfig(policy), residency=residency))
        self.seconds, self.handled = 0.0, 0
        self._now, self._last = 0.0, 0
        self._running: Run | None = None
        for place in range(BUSY):
            self._come(served[models * place // BUSY].spec.name, ASKED)

    def _model(self, name: str) -> ServedModel:
        spec = ModelSpec(name, "1", (), (), BUSY, 16, (1,))
        return ServedModel(spec, self._costs, 1000, Footprint((1,) * BUSY, (0.1,) * BUSY))

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
