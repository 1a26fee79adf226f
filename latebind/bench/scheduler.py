"""What the scheduler costs on one core, by policy and number of waiting requests: events a second, and a boundary."""

import time
from dataclasses import dataclass
from random import Random
from statistics import median

from latebind.batching import POLICIES, make_policy
from latebind.batching.estimate import Estimate
from latebind.batching.queue import Queue
from latebind.batching.view import ModelView
from latebind.domain.actions import Action, Run
from latebind.domain.config import PolicyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, ModelCosts
from latebind.domain.events import Arrived, StageDone
from latebind.domain.model import ModelSpec
from latebind.scheduler import Scheduler

STAGES = 8
MAX_BATCH = 16
BATCHING = tuple(name for name in POLICIES if name != "serial")


@dataclass(frozen=True, slots=True)
class Speed:
    """One measurement: events of both kinds (arrivals and stage boundaries) handled in a second.

    `boundary` is the mean of a stage boundary in seconds, decision included; in the middle of a batch, without anybody
    leaving.
    """

    policy: str
    waiting: int
    batch: int
    events: int
    events_per_second: float
    boundary: float


def run(*, events: int = 200_000, rounds: int = 3, seed: int = 0) -> list[Speed]:
    """Measure every combination of policy and backlog; the median of `rounds` is kept."""
    return [
        measure(policy, waiting=waiting, batch=batch, events=events, rounds=rounds, seed=seed)
        for policy, batch in (
            ("serial", 1),
            ("graph", 1),
            *((name, MAX_BATCH) for name in POLICIES if name != "serial"),
        )
        for waiting in (0, 10, 1000)
    ]


def measure(policy: str, *, waiting: int, batch: int, events: int, rounds: int, seed: int) -> Speed:
    """Measure one policy with `waiting` requests in the queue throughout, at the largest batch that it forms."""
    config = _config(policy, batch, waiting)
    (model,) = config.models
    view = ModelView(model.spec, Estimate(model.spec, model.costs), Queue())
    batch = make_policy(config.policy).batch_limit(view)
    speeds, boundaries = zip(
        *(_round(config, waiting, batch, events, seed + number) for number in range(rounds)), strict=True
    )
    return Speed(policy, waiting, batch, events, median(speeds), median(boundaries))


def _round(config: SchedulerConfig, waiting: int, batch: int, events: int, seed: int) -> tuple[float, float]:
    """Play closed-loop traffic: whoever is answered is replaced; 30 % leave at a boundary that has a lookup."""
    random = Random(seed)
    (model,) = config.models
    scheduler = Scheduler(config)
    backlog = waiting + batch
    running = _launched(scheduler.handle(_arrival(0, backlog), 0.0))
    last, now, handled, seconds = backlog, 0.0, 0, 0.0
    left, boundaries, at_boundaries = 0, 0, 0.0
    while handled < events:
        now += model.costs.step(running.stage, len(running.requests))
        hits = running.stage in (2, 4)
        exited = tuple(i for i in running.requests if hits and random.random() < 0.3)
        done = StageDone(running.worker, exited)
        leaving = len(running.requests) if running.stage == STAGES - 1 else len(exited)
        left += leaving
        coming = left if waiting or left == batch else 0  # where none is to wait, they come when all have gone
        arrivals = [_arrival(last, coming, now)] if coming else []
        last, left = last + coming, left - coming
        begun = time.perf_counter()
        for arrival in arrivals:
            scheduler.handle(arrival, now)
        came = time.perf_counter()
        actions = scheduler.handle(done, now)
        ended = time.perf_counter()
        seconds += ended - begun
        handled += 1 + coming
        if not leaving:
            boundaries += 1
            at_boundaries += ended - came
        running = _launched(actions)
    scheduler.check()
    return handled / seconds, at_boundaries / boundaries


def _launched(actions: list[Action]) -> Run:
    return next(action for action in actions if isinstance(action, Run))


def _arrival(first: int, count: int, now: float = 0.0) -> Arrived:
    numbers = tuple(range(first, first + count))
    return Arrived("net", now + 1e6, numbers, numbers)


def _config(policy: str, batch: int, waiting: int) -> SchedulerConfig:
    costs = ModelCosts(tuple(Curve((1, MAX_BATCH), (3e-4, 3e-3)) for _ in range(STAGES)), {}, {2: 0.3, 4: 0.2})
    spec = ModelSpec("net", "1", (), (), STAGES, MAX_BATCH, (2, 4))
    model = ServedModel(spec, costs, waiting + 10 * MAX_BATCH)
    return SchedulerConfig((model,), 1, PolicyConfig(policy, batch, 0.0))
