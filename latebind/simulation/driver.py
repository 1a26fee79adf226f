"""Drives a scheduler through virtual time: performs its actions with costs in place of networks."""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from latebind.domain.actions import Outcome, Reply, Run, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Arrived, Event, Exited, StageDone, Woke
from latebind.domain.metrics import Metrics
from latebind.scheduler import Scheduler
from latebind.simulation.workloads import Arrival


@dataclass(frozen=True, slots=True)
class Record:
    """How one simulated request went: when it came and ended (seconds), how, and the stage it left at."""

    request: int
    model: str
    arrived: float
    ended: float
    outcome: Outcome
    stage: int

    @property
    def latency(self) -> float:
        """Seconds from arrival to reply."""
        return self.ended - self.arrived


class Simulator:
    """Plays arrivals into a scheduler and collects a record for each. Ties in time go by order of scheduling."""

    def __init__(self, config: SchedulerConfig, *, log: EventLog | None = None) -> None:
        self.scheduler = Scheduler(config)
        self.metrics = Metrics(config)
        self._costs = {served.spec.name: served.costs for served in config.models}
        self._log = log
        self._counter = count()
        self._due: list[tuple[float, int, Event]] = []
        self._wake = 0
        self._arrivals: dict[int, tuple[float, int]] = {}
        self._records: list[Record] = []

    def run(self, arrivals: Iterable[Arrival]) -> list[Record]:
        """Return one record for every arrival (ascending times), in the order of their ends."""
        for request, arrival in enumerate(arrivals):
            self._pass(arrival.time)
            self._arrivals[request] = (arrival.time, arrival.leaves_at)
            # A slot is never short here: the request's number serves as one.
            event = Arrived(arrival.model, arrival.time + arrival.allowed, (request,), (request,))
            self._tell(event, arrival.time)
        while self._due:
            self._pass(self._due[0][0])
        return self._records

    def _pass(self, until: float) -> None:
        """Let everything happen that is due by `until`."""
        while self._due and self._due[0][0] <= until:
            time, number, event = heappop(self._due)
            if isinstance(event, Woke) and number != self._wake:
                continue  # a later WakeAt has replaced it
            self._tell(event, time)

    def _tell(self, event: Event, now: float) -> None:
        actions = self.scheduler.handle(event, now)
        self.metrics.observe(event, actions)
        if self._log:
            self._log.write(now, event, actions)
        for action in actions:
            match action:
                case Run():
                    self._run(action, now)
                case Reply():
                    arrived, _ = self._arrivals.pop(action.request)
                    record = Record(action.request, action.model, arrived, now, action.outcome, action.stage)
                    self._records.append(record)
                case WakeAt():
                    self._wake = self._schedule(action.time, Woke())

    def _run(self, action: Run, now: float) -> None:
        exited = tuple(i for i in action.requests if self._arrivals[i][1] == action.stage)
        costs, batch = self._costs[action.model], len(action.requests)
        ended = now + costs.step(action.stage, batch)
        if not costs.aside or action.stage not in costs.lookups:
            self._schedule(ended, StageDone(action.worker, exited))
            return
        self._schedule(ended, StageDone(action.worker))
        if exited:
            self._schedule(ended + costs.lookups[action.stage].at(batch), Exited(action.worker, action.stage, exited))

    def _schedule(self, time: float, event: Event) -> int:
        number = next(self._counter)
        heappush(self._due, (time, number, event))
        return number
