"""Plays requests to one machine on the virtual clock, records how each ended, and sums up latency and throughput."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from math import ceil, nan

from latebind.domain.actions import Action, Outcome, Reply
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import EventLog
from latebind.domain.events import Event
from latebind.domain.metrics import Metrics
from latebind.domain.tracing import Trace, Tracer
from latebind.queries.scheduler import AnyScheduler
from latebind.simulation.hardware import Agenda, Hardware, Installed
from latebind.simulation.machine import Machine
from latebind.simulation.workloads import Arrival


@dataclass(frozen=True, slots=True)
class Record:
    """How one simulated request went: its arrival and end (seconds), its outcome, and the stage at which it left."""

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


class Simulator(Machine):
    """Plays arrivals into a scheduler and collects a record for each. Ties in time are resolved by scheduling order.

    For `hardware`, `mapping` and `scheduler` see `Machine`. If it `traces`, the trace of every request is kept; its
    number is the request's id plus 1. With queries, the configuration must have more slots than there are requests,
    because each request has a slot of its own.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        log: EventLog | None = None,
        hardware: Installed = Hardware,
        mapping: float = 0.0,
        traces: bool = False,
        scheduler: AnyScheduler | None = None,
    ) -> None:
        super().__init__(
            config,
            Agenda(),
            self._keep,
            hardware=hardware,
            mapping=mapping,
            watch=self._watched,
            scheduler=scheduler,
        )
        self.metrics = Metrics(config)
        self.traces: list[Trace] = []
        self._tracer = Tracer(config) if traces else None
        self._log = log
        self._records: list[Record] = []
        self._requests = 0  # number of requests sent
        self._next: Iterator[Arrival] | None = None  # the requests that closed-loop clients send

    def run(self, arrivals: Iterable[Arrival]) -> list[Record]:
        """Return one record for every arrival (ascending times), in the order of their ends."""
        for arrival in arrivals:
            self._agenda.run_until(arrival.time)
            self._send(arrival)
        self._agenda.run_until()
        return self._records

    def run_closed(self, wanted: Iterable[Arrival], *, clients: int) -> list[Record]:
        """Return one record for every request of a closed loop: each client sends its next one when it has its answer.

        The times of `wanted` are ignored, and each is one row.
        """
        self._next = iter(wanted)
        for arrival in islice(self._next, clients):
            self._send(replace(arrival, time=0.0))
        self._agenda.run_until()
        return self._records

    def _send(self, arrival: Arrival) -> None:
        """Send a call to the machine, at its time."""
        first, query = self._requests, self._queries.get(arrival.model)
        stride = 1 if query is None else 1 + len(query.nodes)  # a query also owns the ids of its steps
        self._requests += arrival.rows * stride
        rows = tuple(range(first, self._requests, stride))
        trace = 0 if self._tracer is None else first + 1
        self.take(rows, arrival, arrival.time + arrival.allowed, now=arrival.time, trace=trace)

    def _send_next(self, wanted: Iterator[Arrival], now: float) -> None:
        arrival = next(wanted, None)
        if arrival is not None:
            self._send(replace(arrival, time=now))

    def _watched(self, event: Event, actions: Sequence[Action], now: float) -> None:
        self.metrics.observe(event, actions, now=now)
        if self._tracer is not None:
            self.traces.extend(self._tracer.observe(event, actions, now=now))
        if self._log:
            self._log.write(now, event, actions)

    def _keep(self, reply: Reply, arrival: Arrival, now: float) -> None:
        record = Record(reply.request, reply.model, arrival.time, now, reply.outcome, reply.stage)
        self._records.append(record)
        if self._next is not None:
            self._agenda.at(now, partial(self._send_next, self._next))


@dataclass(frozen=True, slots=True)
class Summary:
    """Seconds and shares over one run; latencies are those of answered requests only, NaN if there are none.

    For rows that differ in length, `quarters` are the shares in time of the shortest quarter and of each longer one,
    and `padding` is how many times their lengths were run; else it is 1. `promised` counts started requests by their
    fidelity, if that follows the load.
    """

    requests: int
    answered: int
    in_time: int
    mean: float
    p50: float
    p99: float
    throughput: float
    left_at: dict[int, float]
    quarters: tuple[float, ...] = ()
    padding: float = 1.0
    promised: dict[str, int] = field(default_factory=dict)


def summarize(records: Sequence[Record], *, allowed: float) -> Summary:
    """Summarize records; `allowed` (seconds) decides what was in time."""
    answered = [record for record in records if record.outcome is Outcome.ANSWERED]
    latencies = sorted(record.latency for record in answered)
    span = max(r.ended for r in records) - min(r.arrived for r in records) if records else 0.0
    stages = Counter(record.stage for record in answered)
    return Summary(
        requests=len(records),
        answered=len(answered),
        in_time=sum(latency <= allowed for latency in latencies),
        mean=sum(latencies) / len(latencies) if latencies else nan,
        p50=percentile(latencies, 50),
        p99=percentile(latencies, 99),
        throughput=len(answered) / span if span else nan,
        left_at={stage: stages[stage] / len(answered) for stage in sorted(stages)},
    )


def percentile(ascending: Sequence[float], percent: float) -> float:
    """Return the nearest-rank percentile of values in ascending order; NaN if there are none."""
    if not ascending:
        return nan
    return ascending[max(0, ceil(percent / 100 * len(ascending)) - 1)]
