"""Drives a scheduler through virtual time: performs its actions with costs in place of networks."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

from latebind.domain.actions import Outcome, Reply, Run, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Arrived, Event, Exited, StageDone, Woke
from latebind.domain.metrics import Metrics
from latebind.domain.model import StageKind
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
        self._specs = {served.spec.name: served.spec for served in config.models}
        self._arrivals: dict[int, Arrival] = {}
        self._steps: Counter[int] = Counter()  # of a decoder, behind each request
        self._records: list[Record] = []

    def run(self, arrivals: Iterable[Arrival]) -> list[Record]:
        """Return one record for every arrival (ascending times), in the order of their ends."""
        request = 0
        for arrival in arrivals:
            self._pass(arrival.time)
            rows = tuple(range(request, request + arrival.rows))
            request += arrival.rows
            self._arrivals |= dict.fromkeys(rows, arrival)
            due, n = arrival.time + arrival.allowed, len(rows)
            # A slot is never short here: the request's number serves as one.
            event = Arrived(arrival.model, due, rows, rows, (arrival.inputs,) * n, (arrival.outputs,) * n)
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
                    arrived = self._arrivals.pop(action.request).time
                    self._steps.pop(action.request, None)
                    record = Record(action.request, action.model, arrived, now, action.outcome, action.stage)
                    self._records.append(record)
                case WakeAt():
                    self._wake = self._schedule(action.time, Woke())

    def _run(self, action: Run, now: float) -> None:
        costs, batch = self._costs[action.model], action.rows or len(action.requests)
        inputs = max([self._arrivals[i].inputs for i in action.requests]) if costs.slopes else 1
        ended = now + costs.step(action.stage, batch, inputs)
        exited = self._exited(action)
        if not costs.aside or action.stage not in costs.lookups:
            self._schedule(ended, StageDone(action.worker, exited))
            return
        self._schedule(ended, StageDone(action.worker))
        if exited:
            known = ended + costs.lookups[action.stage].at(batch)
            self._schedule(known, Exited(action.worker, action.stage, exited))

    def _exited(self, action: Run) -> tuple[int, ...]:
        """Return who has its answer when this step has run."""
        if self._specs[action.model].kind(action.stage) is not StageKind.DECODER:
            return tuple([i for i in action.requests if self._arrivals[i].leaves_at == action.stage])
        self._steps.update(action.requests)
        return tuple([i for i in action.requests if self._steps[i] >= self._arrivals[i].outputs])

    def _schedule(self, time: float, event: Event) -> int:
        number = next(self._counter)
        heappush(self._due, (time, number, event))
        return number
