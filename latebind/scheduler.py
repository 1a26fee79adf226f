"""The scheduler: the only place where requests change state. `handle(event, now)` answers with actions.

Pure: no torch, asyncio, threads, sockets or clock. The live engine and the simulator drive the very same code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from heapq import heappop, heappush
from math import inf, nextafter

from latebind.batching import make_policy
from latebind.batching.view import Launch, ModelView, Wait, WorkView
from latebind.domain.actions import Action, Outcome, Reply, Run, WakeAt
from latebind.domain.config import SchedulerConfig, ServedModel
from latebind.domain.errors import IllegalEvent
from latebind.domain.events import Arrived, Cancelled, Event, Exited, StageDone, StageFailed, Woke


class State(Enum):
    """Where a request is in its life; it is forgotten when it has ended."""

    QUEUED = auto()
    RUNNING = auto()
    LEAVING = auto()


# What may follow what; the end of a request (its reply) may follow any state.
LEGAL_MOVES = {
    State.QUEUED: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.LEAVING}),  # cancelled: it leaves at the next stage boundary
    State.LEAVING: frozenset[State](),
}


@dataclass(slots=True)
class Request:
    """One request between its arrival and its reply. Times in seconds."""

    id: int
    model: str
    slot: int
    deadline: float
    arrived: float
    started: float = inf
    stage: int = -1
    state: State = State.QUEUED

    def move(self, state: State) -> None:
        """Go to `state`, or raise `IllegalEvent` and stay."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalEvent(f"request {self.id} is {self.state.name} and cannot become {state.name}")
        self.state = state


class Lane:
    """The queue of one model and the figures that decide whether a newcomer can be in time."""

    def __init__(self, served: ServedModel) -> None:
        self.spec = served.spec
        self.max_queued = served.max_queued
        self.queue: dict[int, Request] = {}
        self.view = ModelView(served.spec.name, served.spec.max_batch, served.costs, self.queue)
        self.full_depth = served.costs.remaining(0, 1)
        self.seconds_per_request = 0.0  # of a worker, at the largest batch that the policy forms


@dataclass(slots=True)
class SubBatch:
    """Requests that run together on one worker, all at the same stage.

    Those answered aside leave at once; where all have, the stage runs to its end for nobody.
    """

    lane: Lane
    stage: int
    members: dict[int, Request]


class Scheduler:
    """Admits, queues, launches, answers. Feed it every event in the order of time and perform every action."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._policy = make_policy(config.policy)
        self._lanes = {served.spec.name: Lane(served) for served in config.models}
        for lane in self._lanes.values():
            limit = self._policy.batch_limit(lane.view)
            lane.seconds_per_request = lane.view.costs.remaining(0, limit) / limit
        self._view = WorkView(tuple(lane.view for lane in self._lanes.values()))
        self._workers: list[SubBatch | None] = [None] * config.workers
        self._live: dict[int, Request] = {}
        self._queued = 0
        self._backlog = 0.0  # seconds of work in all queues, over all workers, at full depth
        self._last_starts: list[tuple[float, int]] = []  # heap: when a queued request must start at the latest
        self._wake = inf
        self._accepted = 0
        self._ended = 0
        self._handlers: dict[type[Event], Callable[..., None]] = {
            Arrived: self._arrived,
            Cancelled: self._cancelled,
            StageDone: self._stage_done,
            Exited: self._exited,
            StageFailed: self._stage_failed,
            Woke: self._woke,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event that happened at `now` (seconds, never going back) and return what to do, in order.

        Raises `IllegalEvent`, with nothing changed, for an event that the state does not allow.
        """
        actions: list[Action] = []
        self._handlers[type(event)](event, now, actions)
        if self._queued:
            self._drop_late(now, actions)
            self._launch(now, actions)
        return actions

    def stats(self) -> dict[str, int]:
        """Return how many requests were accepted, are queued and running, and have ended since the start."""
        return {
            "accepted": self._accepted,
            "queued": self._queued,
            "running": len(self._live) - self._queued,
            "ended": self._ended,
        }

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        running = [batch for batch in self._workers if batch is not None]
        members = {i for batch in running for i in batch.members}
        queued = {i for lane in self._lanes.values() for i in lane.queue}
        assert self._accepted == self._ended + len(self._live), "accepted is not queued + running + ended"
        assert self._queued == len(queued), "the count of queued requests is off"
        assert sum(len(batch.members) for batch in running) == len(members), "a request runs twice"
        assert not members & queued, "a request is queued and running"
        assert members | queued == set(self._live), "a live request is neither queued nor running"
        assert all(self._live[i].state is State.QUEUED for i in queued), "a queued request has another state"
        assert all(self._live[i].state is not State.QUEUED for i in members), "a running request counts as queued"
        slots = [(request.model, request.slot) for request in self._live.values()]
        assert len(set(slots)) == len(slots), "a slot has two owners"
        assert not (queued and self._wake == inf and None in self._workers), "a free worker forgets who waits"
        work = sum(len(lane.queue) * lane.seconds_per_request for lane in self._lanes.values())
        assert abs(self._backlog - work) <= 1e-6 * max(1.0, work), "the backlog does not fit the queues"

    # Events ---------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float, actions: list[Action]) -> None:
        lane = self._lanes.get(event.model)
        if lane is None:
            raise IllegalEvent(f"requests {event.requests} are for {event.model!r}, which is not served")
        if any(i in self._live for i in event.requests):
            raise IllegalEvent(f"a request of {event.requests} has arrived twice")
        refusal = self._refusal(lane, event, now)
        if refusal is not None:
            actions.extend([Reply(i, event.model, refusal, -1, 0.0, 0.0) for i in event.requests])
            return
        for i, slot in zip(event.requests, event.slots, strict=True):
            self._live[i] = lane.queue[i] = Request(i, event.model, slot, event.deadline, now)
            heappush(self._last_starts, (event.deadline - lane.full_depth, i))
        count = len(event.requests)
        self._accepted += count
        self._queued += count
        self._backlog += count * lane.seconds_per_request

    def _refusal(self, lane: Lane, event: Arrived, now: float) -> Outcome | None:
        """Say why these requests cannot be accepted; their work and all before it is counted at full depth."""
        count = len(event.requests)
        if len(lane.queue) + count > lane.max_queued:
            return Outcome.REFUSED_FULL
        ahead = (self._backlog + (count - 1) * lane.seconds_per_request) / len(self._workers)
        if now + ahead + lane.full_depth > event.deadline:
            return Outcome.REFUSED_LATE
        return None

    def _cancelled(self, event: Cancelled, now: float, actions: list[Action]) -> None:
        request = self._live.get(event.request)
        if request is None:  # its reply was under way when the client left
            return
        if request.state is State.QUEUED:
            self._dequeue(request)
            self._end(request, Outcome.CANCELLED, now, actions)
        elif request.state is State.RUNNING:
            request.move(State.LEAVING)

    def _stage_done(self, event: StageDone, now: float, actions: list[Action]) -> None:
        batch = self._busy(event.worker)
        for i in event.exited:
            if i not in batch.members:
                raise IllegalEvent(f"request {i} left a batch of worker {event.worker} that it is not in")
        stage = batch.stage
        for request in batch.members.values():
            request.stage = stage
        for i in event.exited:
            self._end(batch.members.pop(i), Outcome.ANSWERED, now, actions)
        if stage + 1 == batch.lane.spec.stages:
            self._end_all(batch, Outcome.ANSWERED, now, actions)
        else:
            self._shed(batch, now, actions)
        if batch.members:
            batch.stage = stage + 1
            actions.append(self._run(event.worker, batch))
        else:
            self._workers[event.worker] = None

    def _exited(self, event: Exited, now: float, actions: list[Action]) -> None:
        """End those that are still here; others were answered by the end of their network just before."""
        batch = self._workers[event.worker] if 0 <= event.worker < len(self._workers) else None
        if batch is None:
            return
        for i in event.requests:
            request = batch.members.pop(i, None)
            if request is not None:
                request.stage = event.stage
                self._end(request, Outcome.ANSWERED, now, actions)

    def _stage_failed(self, event: StageFailed, now: float, actions: list[Action]) -> None:
        batch = self._busy(event.worker)
        self._end_all(batch, Outcome.FAILED, now, actions)
        self._workers[event.worker] = None

    def _woke(self, event: Woke, now: float, actions: list[Action]) -> None:
        del event, actions
        if now >= self._wake:
            self._wake = inf

    # Decisions ------------------------------------------------------------------------------------------------------

    def _drop_late(self, now: float, actions: list[Action]) -> None:
        """End the queued requests that even a batch of one, started now, would answer too late."""
        while self._last_starts and (self._last_starts[0][0] < now or not self._is_queued(self._last_starts[0][1])):
            request = self._live.get(heappop(self._last_starts)[1])
            if request is not None and request.state is State.QUEUED:
                self._dequeue(request)
                self._end(request, Outcome.EXPIRED, now, actions)

    def _launch(self, now: float, actions: list[Action]) -> None:
        """Ask the policy for every free worker, until it wants to wait or nothing waits."""
        for worker, batch in enumerate(self._workers):
            if batch is not None:
                continue
            if not self._queued:
                return
            decision = self._policy.decide(self._view, now)
            if isinstance(decision, Wait):
                self._ask_to_wake(decision.until, now, actions)
                return
            self._start(worker, decision, now, actions)

    def _start(self, worker: int, launch: Launch, now: float, actions: list[Action]) -> None:
        lane = self._lanes[launch.model]
        members = {i: lane.queue[i] for i in launch.requests}
        for request in members.values():
            self._dequeue(request)
            request.move(State.RUNNING)
            request.started = now
        batch = SubBatch(lane, 0, members)
        self._workers[worker] = batch
        actions.append(self._run(worker, batch))

    def _shed(self, batch: SubBatch, now: float, actions: list[Action]) -> None:
        """At a stage boundary, let go of members whose client has left or whose deadline has passed."""
        for request in list(batch.members.values()):
            if request.state is State.LEAVING:
                outcome = Outcome.CANCELLED
            elif request.deadline < now:
                outcome = Outcome.EXPIRED
            else:
                continue
            del batch.members[request.id]
            self._end(request, outcome, now, actions)

    def _ask_to_wake(self, until: float, now: float, actions: list[Action]) -> None:
        """Have the driver wake us when the policy wants to be asked again or the first queued request gets late."""
        wanted = min(until, nextafter(self._last_starts[0][0], inf))
        if wanted != self._wake or self._wake <= now:
            self._wake = wanted
            actions.append(WakeAt(wanted))

    # Bookkeeping ----------------------------------------------------------------------------------------------------

    def _busy(self, worker: int) -> SubBatch:
        batch = self._workers[worker] if 0 <= worker < len(self._workers) else None
        if batch is None:
            raise IllegalEvent(f"worker {worker} reports a stage but runs none")
        return batch

    def _is_queued(self, request: int) -> bool:
        found = self._live.get(request)
        return found is not None and found.state is State.QUEUED

    def _run(self, worker: int, batch: SubBatch) -> Run:
        slots = tuple([request.slot for request in batch.members.values()])
        return Run(worker, batch.lane.spec.name, batch.stage, tuple(batch.members), slots)

    def _dequeue(self, request: Request) -> None:
        lane = self._lanes[request.model]
        del lane.queue[request.id]
        self._queued -= 1
        self._backlog = self._backlog - lane.seconds_per_request if self._queued else 0.0

    def _end_all(self, batch: SubBatch, outcome: Outcome, now: float, actions: list[Action]) -> None:
        for request in batch.members.values():
            gone = request.state is State.LEAVING
            self._end(request, Outcome.CANCELLED if gone else outcome, now, actions)
        batch.members.clear()

    def _end(self, request: Request, outcome: Outcome, now: float, actions: list[Action]) -> None:
        del self._live[request.id]
        self._ended += 1
        waited = min(request.started, now) - request.arrived
        ran = max(0.0, now - request.started)
        actions.append(Reply(request.id, request.model, outcome, request.stage, waited, ran))
