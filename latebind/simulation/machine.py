"""One simulated machine: a scheduler on the virtual clock, whose actions take measured costs instead of running.

Several machines may share an agenda. Generating requests and recording their ends is left to the caller.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from msgspec.structs import replace

from latebind.batching.depth import NO_LEVEL
from latebind.domain.actions import Action, Branch, Evict, Load, Map, Outcome, Reply, Run, StepEnded, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.costs import TYPICAL_STEPS, batch_length
from latebind.domain.events import Arrived, Branched, Event, Exited, Loaded, MapFailed, Mapped, StageDone, Woke
from latebind.domain.model import StageKind
from latebind.queries.scheduler import AnyScheduler, make_scheduler
from latebind.simulation.hardware import Agenda, Call, Hardware, Installed, Work
from latebind.simulation.workloads import Arrival


@dataclass(slots=True)
class Spent:
    """What a machine has done: `busy` seconds of runs, and `loads`; counted as they start."""

    busy: float = 0.0
    loads: int = 0


Ended = Callable[[Reply, Arrival, float], None]
Watch = Callable[[Event, Sequence[Action], float], None]


class Machine:
    """Takes requests, and calls `ended` for each that has ended, with its arrival and the time.

    Requests run on `hardware`; the scheduler gets the event of a call when its inputs have arrived. Writing the inputs
    of a query's step, or evaluating a condition, takes `mapping` seconds. `watch` gets every event and its actions
    before they are performed. `steps` are the steps of queries that have ended. `scheduler` may be one that has learned
    from an earlier run; it must be idle.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        agenda: Agenda,
        ended: Ended,
        *,
        hardware: Installed = Hardware,
        mapping: float = 0.0,
        watch: Watch | None = None,
        scheduler: AnyScheduler | None = None,
    ) -> None:
        self.scheduler = scheduler or make_scheduler(config)
        self.steps: list[StepEnded] = []
        self.spent = Spent()
        self._agenda = agenda
        self._ended = ended
        self._hardware = hardware(agenda)
        self._mapping = mapping
        self._watch = watch
        self._costs = {served.spec.name: served.costs for served in config.models}
        self._footprints = {served.spec.name: served.footprint for served in config.models}
        self._specs = {served.spec.name: served.spec for served in config.models}
        self._queries = {query.name: query for query in config.queries}
        self._arrivals: dict[int, Arrival] = {}  # by request, including steps of queries
        self._steps: Counter[int] = Counter()  # decoder steps that each request has run
        self._wake = -1
        self._stopped = False

    def take(self, requests: tuple[int, ...], arrival: Arrival, due: float, *, now: float, trace: int = 0) -> None:
        """Take a call of equal `requests`, due at `due`."""
        self._arrivals |= dict.fromkeys(requests, arrival)
        n = len(requests)
        # A slot is never short here: the request's number serves as one.
        event = Arrived(
            arrival.model, due, requests, requests, (arrival.inputs,) * n, arrival.priority, trace, sizes=arrival.sizes
        )
        self._hardware.bring(arrival.model, n, now, self._delivery(event))

    def stop(self) -> list[int]:
        """Stop for good; return the ids of the requests that were not answered, ascending."""
        self._stopped = True
        lost = sorted(self._arrivals)
        self._arrivals.clear()  # so that stopping twice returns nothing more
        return lost

    def _delivery(self, event: Event) -> Call:
        return partial(self._deliver, event)

    def _deliver(self, event: Event, now: float) -> None:
        if self._stopped:
            return
        actions = self.scheduler.handle(event, now)
        if self._watch is not None:
            self._watch(event, actions, now)
        looks: list[Branch | Map] = []
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
                    looks.append(action)
                case StepEnded():
                    self.steps.append(action)
                case WakeAt():
                    self._agenda.cancel(self._wake)  # a later WakeAt replaces it
                    self._wake = self._agenda.at(action.time, self._delivery(Woke()))
        if looks:
            count = sum([len(action.requests) for action in looks])
            self._agenda.at(now + self._mapping * count, partial(self._look, looks))

    def _evict(self, action: Evict) -> None:
        """Memory is released at once."""

    def _record(self, reply: Reply, now: float) -> None:
        arrival = self._arrivals.pop(reply.request)
        query = self._queries.get(reply.model)
        for step in range(1, 1 if query is None else 1 + len(query.nodes)):
            self._arrivals.pop(reply.request + step, None)
        self._steps.pop(reply.request, None)
        self._ended(reply, arrival, now)

    def _run(self, action: Run, now: float) -> None:
        costs, batch = self._costs[action.model], len(action.requests)
        length = batch_length([self._arrivals[i].inputs for i in action.requests], self._specs[action.model].packs)
        seconds = costs.step(action.stage, batch, length)
        longer = 1.0  # than with an input of typical length
        if len(costs.stages[action.stage].lengths) > 1:
            longer = seconds / costs.step(action.stage, batch, TYPICAL_STEPS)
        work = Work(action.worker, action.model, action.stage, batch, seconds, longer)
        self.spent.busy += work.seconds
        exited = self._exited(action)
        if not costs.aside or action.stage not in costs.lookups:
            looked = costs.lookups[action.stage].at(batch) if action.stage in costs.lookups else 0.0
            self._hardware.run(work, now, [(0.0, self._delivery(StageDone(action.worker, exited, looked)))])
            return
        after = [(0.0, self._delivery(StageDone(action.worker)))]
        if exited:
            known = costs.lookups[action.stage].at(batch)
            after.append((known, self._delivery(Exited(action.worker, action.stage, exited))))
        self._hardware.run(work, now, after)

    def _load(self, action: Load, now: float) -> None:
        footprint = self._footprints[action.model]
        seconds = sum([footprint.seconds[piece] for piece in action.pieces]) + footprint.fixed * action.begins
        self.spent.loads += 1
        self._agenda.at(now + seconds, self._delivery(Loaded(action.model, action.pieces, seconds)))

    def _look(self, looks: list[Branch | Map], now: float) -> None:
        """Report the results of maps and branches that were performed together."""
        events = [event for action in looks for event in self._mapped(action, now)]
        for place, event in enumerate(events, start=1):
            if not self._stopped:
                self._deliver(replace(event, more=place < len(events)), now)

    def _mapped(self, action: Branch | Map, now: float) -> Sequence[Branched | Mapped | MapFailed]:
        """Return the events that end a map or branch; steps that may start are added to the arrivals."""
        arrivals = [self._arrivals[request] for request in action.requests]
        if isinstance(action, Branch):
            holds = [tuple([arrival.steps[node].holds for node in action.nodes]) for arrival in arrivals]
            return (Branched(action.requests, action.nodes, tuple(holds)),)
        node, nodes = action.node, self._queries[action.query].nodes
        if node < len(nodes):
            option = action.chosen[node]
            for request, arrival in zip(action.requests, arrivals, strict=True):
                step = arrival.steps[node]
                levels = step.levels[option] if step.levels else ()
                self._arrivals[request + 1 + node] = Arrival(
                    now, nodes[node].models[option], arrival.allowed, step.leaves_at[option], levels=levels
                )
        return (Mapped(action.requests, node),)

    def _leaves(self, request: int, level: int) -> int:
        """Return the stage after which a request that runs at this level leaves."""
        arrival = self._arrivals[request]
        return arrival.leaves_at if level == NO_LEVEL or not arrival.levels else arrival.levels[level]

    def _exited(self, action: Run) -> tuple[int, ...]:
        """Return the requests that have their answer once this step has run."""
        if self._specs[action.model].kind(action.stage) is not StageKind.DECODER:
            levels = action.levels or (NO_LEVEL,) * len(action.requests)
            return tuple(
                [i for i, n in zip(action.requests, levels, strict=True) if self._leaves(i, n) == action.stage]
            )
        self._steps.update(action.requests)
        return tuple([i for i in action.requests if self._steps[i] >= self._arrivals[i].outputs])
