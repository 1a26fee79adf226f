"""Measures what the scheduler costs on one core, by policy and queue length: a boundary, a decision, an event.

In CPU seconds of the thread, which are meaningful on a busy machine as well, and beside them by the clock.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import median

from latebind.batching.costs import Estimate
from latebind.batching.decisions import Decision
from latebind.batching.policy import BatchPolicy, ModelView, WorkView, make_policy
from latebind.batching.queue import Queue
from latebind.batching.table import BatchTable
from latebind.domain.actions import Action, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.events import Arrived, StageDone
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

    def table(self, granularity: int) -> BatchTable:
        return self._policy.table(granularity)

    def decide(self, view: WorkView, now: float) -> Decision:
        begun, cpu = time.perf_counter(), time.thread_time()
        decision = self._policy.decide(view, now)
        self.watch.times.append((time.thread_time() - cpu, time.perf_counter() - begun))
        return decision


def run(
    *, policies: Sequence[str] = tuple(BATCHING), events: int = 6_000, rounds: int = 3, seed: int = 0
) -> list[Speed]:
    """Measure every combination of policy and backlog.

    The minimum over `rounds` is kept, since other work on the machine only adds.
    """
    return [
        measure(policy, waiting=waiting, events=events, rounds=rounds, seed=seed)
        for policy in policies
        for waiting in BACKLOGS
    ]


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
