"""Measures what an event costs the scheduler if many models are served and few have requests, in core microseconds."""

import time
from dataclasses import dataclass
from statistics import median

from latebind.domain.actions import Load, Reply, Run
from latebind.domain.config import PolicyConfig, ResidencyConfig, SchedulerConfig, ServedModel
from latebind.domain.costs import Curve, Footprint, ModelCosts
from latebind.domain.events import Arrived, Event, Loaded, StageDone
from latebind.domain.model import ModelSpec
from latebind.scheduler import Scheduler

STAGES = 4
BUSY = 4  # models that are asked for
WAITING = 8  # requests for each of them, all the time
COUNTS = (BUSY, 200, 2000)
POLICIES = ("graph", "lazy+", "late")
COSTS = ModelCosts((Curve((1, 16), (3e-4, 3e-3)),) * STAGES, {}, {1: 0.3})


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of one event, arrivals and stage boundaries alike, with so many `models`, in `memory` or without."""

    policy: str
    models: int
    memory: bool
    event: float


def run(*, events: int = 20_000, rounds: int = 3) -> list[Cost]:
    """Measure policies with few and with many models; the median of `rounds` is kept."""
    return [
        Cost(
            policy,
            models,
            memory,
            median([measure(policy, models, memory=memory, events=events) for _ in range(rounds)]),
        )
        for policy in POLICIES
        for memory in (False, True)
        for models in COUNTS
    ]


def measure(policy: str, models: int, *, memory: bool, events: int) -> float:
    """Return the mean seconds of an event in closed-loop traffic, where each answered request is replaced."""
    crowd = _Crowd(policy, models, memory)
    crowd.begin()
    crowd.play(events // 10)
    crowd.seconds, crowd.handled = 0.0, 0
    crowd.play(events)
    crowd.scheduler.check()
    return crowd.seconds / crowd.handled


class _Crowd:
    """A scheduler, and the clients that keep some of its models busy."""

    def __init__(self, policy: str, models: int, memory: bool) -> None:
        served = [_model(f"net-{number:04}") for number in range(models)]
        residency = ResidencyConfig(models * STAGES if memory else 0)
        config = SchedulerConfig(tuple(served), 1, PolicyConfig(policy), residency=residency)
        self._asked = [served[models * place // BUSY].spec.name for place in range(BUSY)]
        self.scheduler = Scheduler(config)
        self.seconds, self.handled = 0.0, 0
        self._now, self._last = 0.0, 0
        self._running: Run | None = None

    def begin(self) -> None:
        """Let the first requests arrive, and their models load."""
        for name in self._asked:
            self._come(name, WAITING)

    def play(self, events: int) -> None:
        """Let stages end until `events` events have been handled."""
        while self.handled < events:
            assert self._running is not None, "nobody works"
            running = self._running
            self._now += COSTS.step(running.stage, len(running.requests))
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


def _model(name: str) -> ServedModel:
    spec = ModelSpec(name, "1", (), (), STAGES, 16, (1,))
    return ServedModel(spec, COSTS, 1000, Footprint((1,) * STAGES, (0.1,) * STAGES))
