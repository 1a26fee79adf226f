"""Drives a scheduler through virtual time: performs its actions with costs in place of networks."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from latebind.domain.actions import Branch, Evict, Load, Map, Outcome, Reply, Run, StepEnded, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Arrived, Branched, Event, Exited, Loaded, MapFailed, Mapped, StageDone, Woke
from latebind.domain.metrics import Metrics
from latebind.domain.model import StageKind
from latebind.domain.tracing import Trace, Tracer
from latebind.queries.scheduler import make_scheduler
from latebind.simulation.agenda import Agenda, Call
from latebind.simulation.hardware import Independent, Installed, Work
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
    """Plays arrivals into a scheduler and collects a record for each. Ties in time go by order of scheduling.

    Requests run on `hardware`; the scheduler hears of a call when its inputs are there. To write the inputs of a
    query's step, or to judge a condition, takes `mapping` seconds. Where it `traces`, the life of every request is kept
    under its number plus 1. `steps` are those of queries that have ended; with
    queries the configuration must have more slots than requests come, for each has one of its own.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        log: EventLog | None = None,
        hardware: Installed = Independent,
        mapping: float = 0.0,
        traces: bool = False,
    ) -> None:
        self.scheduler = make_scheduler(config)
        self.steps: list[StepEnded] = []
        self.metrics = Metrics(config)
        self.traces: list[Trace] = []
        self._tracer = Tracer(config) if traces else None
        self._costs = {served.spec.name: served.costs for served in config.models}
        self._log = log
        self._agenda = Agenda()
        self._hardware = hardware(self._agenda)
        self._wake = -1
        self._footprints = {served.spec.name: served.footprint for served in config.models}
        self._specs = {served.spec.name: served.spec for served in config.models}
        self._queries = {query.name: query for query in config.queries}
        self._mapping = mapping
        self._arrivals: dict[int, Arrival] = {}  # of steps too
        self._steps: Counter[int] = Counter()  # of a decoder, behind each request
        self._records: list[Record] = []
        self._requests = 0  # that have been sent
        self._next: Iterator[Arrival] | None = None  # what clients send who wait for each answer

    def run(self, arrivals: Iterable[Arrival]) -> list[Record]:
        """Return one record for every arrival (ascending times), in the order of their ends."""
        for arrival in arrivals:
            self._agenda.go_on(arrival.time)
            self._send(arrival)
        self._agenda.go_on()
        return self._records

    def run_closed(self, wanted: Iterable[Arrival], *, clients: int) -> list[Record]:
        """Return one record for every request: each of so many clients sends its next as soon as it has its answer.

        The times of arrivals do not count, and each is one row.
        """
        self._next = iter(wanted)
        for arrival in islice(self._next, clients):
            self._send(replace(arrival, time=0.0))
        self._agenda.go_on()
        return self._records

    def _send(self, arrival: Arrival) -> None:
        """Have a call come, at its time."""
        first, query = self._requests, self._queries.get(arrival.model)
        stride = 1 if query is None else 1 + len(query.nodes)  # a query owns the numbers of its steps
        self._requests += arrival.rows * stride
        rows = tuple(range(first, self._requests, stride))
        self._arrivals |= dict.fromkeys(rows, arrival)
        due, n = arrival.time + arrival.allowed, len(rows)
        # A slot is never short here: the request's number serves as one.
        lengths = (arrival.inputs,) * n, (arrival.outputs,) * n
        trace = 0 if self._tracer is None else first + 1
        event = Arrived(arrival.model, due, rows, rows, *lengths, arrival.priority, trace)
        self._hardware.bring(arrival.model, n, arrival.time, self._telling(event))

    def _send_next(self, wanted: Iterator[Arrival], now: float) -> None:
        arrival = next(wanted, None)
        if arrival is not None:
            self._send(replace(arrival, time=now))

    def _telling(self, event: Event) -> Call:
        return partial(self._tell, event)

    def _tell(self, event: Event, now: float) -> None:
        actions = self.scheduler.handle(event, now)
        self.metrics.observe(event, actions, now=now)
        if self._tracer is not None:
            self.traces.extend(self._tracer.observe(event, actions, now=now))
        if self._log:
            self._log.write(now, event, actions)
        for action in actions:
            match action:
                case Run():
                    self._run(action, now)
                case Reply(outcome=Outcome.ANSWERED):
                    self._hardware.send(action.model, now, partial(self._record, action))
                case Reply():
                    self._record(action, now)
                case Load():
                    self._load(action, now)
                case Evict():
                    self._evict(action)
                case Branch() | Map():
                    self._agenda.at(now + self._mapping, self._telling(self._mapped(action, now)))
                case StepEnded():
                    self.steps.append(action)
                case WakeAt():
                    self._agenda.call_off(self._wake)  # a later WakeAt replaces it
                    self._wake = self._agenda.at(action.time, self._telling(Woke()))

    def _record(self, reply: Reply, now: float) -> None:
        arrived = self._arrivals.pop(reply.request).time
        query = self._queries.get(reply.model)
        for step in range(1, 1 if query is None else 1 + len(query.nodes)):
            self._arrivals.pop(reply.request + step, None)
        self._steps.pop(reply.request, None)
        self._records.append(Record(reply.request, reply.model, arrived, now, reply.outcome, reply.stage))
        if self._next is not None:
            self._agenda.at(now, partial(self._send_next, self._next))

    def _run(self, action: Run, now: float) -> None:
        costs, batch = self._costs[action.model], action.rows or len(action.requests)
        inputs = max([self._arrivals[i].inputs for i in action.requests]) if costs.slopes else 1
        work = Work(action.worker, action.model, action.stage, batch, costs.step(action.stage, batch, inputs))
        exited = self._exited(action)
        if not costs.aside or action.stage not in costs.lookups:
            looked = costs.lookups[action.stage].at(batch) if action.stage in costs.lookups else 0.0
            self._hardware.run(work, now, [(0.0, self._telling(StageDone(action.worker, exited, looked)))])
            return
        after = [(0.0, self._telling(StageDone(action.worker)))]
        if exited:
            known = costs.lookups[action.stage].at(batch)
            after.append((known, self._telling(Exited(action.worker, action.stage, exited))))
        self._hardware.run(work, now, after)

    def _load(self, action: Load, now: float) -> None:
        """Have pieces come in the time that the hardware takes for them."""
        footprint = self._footprints[action.model]
        expected = sum([footprint.seconds[piece] for piece in action.pieces]) + footprint.fixed * action.begins
        size = sum([footprint.sizes[piece] for piece in action.pieces])
        seconds = self._hardware.load(size, expected, now)
        self._agenda.at(now + seconds, self._telling(Loaded(action.model, action.pieces, seconds)))

    def _evict(self, action: Evict) -> None:
        """Memory is given back at once: nothing is to be done."""

    def _mapped(self, action: Branch | Map, now: float) -> Branched | Mapped | MapFailed:
        """Return what comes of looking into the tensors of a query; a step that may begin comes like a request."""
        arrival = self._arrivals[action.request]
        if isinstance(action, Branch):
            holds = tuple([arrival.steps[node].holds for node in action.nodes])
            return Branched(action.request, action.nodes, holds)
        if action.node < len(arrival.steps):
            option = action.chosen[action.node]
            model = self._queries[action.query].nodes[action.node].models[option]
            leaves_at = arrival.steps[action.node].leaves_at[option]
            self._arrivals[action.request + 1 + action.node] = Arrival(now, model, arrival.allowed, leaves_at)
        return Mapped(action.request, action.node)

    def _exited(self, action: Run) -> tuple[int, ...]:
        """Return who has its answer when this step has run."""
        if self._specs[action.model].kind(action.stage) is not StageKind.DECODER:
            return tuple([i for i in action.requests if self._arrivals[i].leaves_at == action.stage])
        self._steps.update(action.requests)
        return tuple([i for i in action.requests if self._steps[i] >= self._arrivals[i].outputs])
