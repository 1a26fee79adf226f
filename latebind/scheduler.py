"""The scheduler: the only place where requests change state. `handle(event, now)` returns the actions to perform.

Pure: no torch, asyncio, threads, sockets or clock. The live engine and the simulator drive this same code.
"""

from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from math import inf, nextafter

from latebind.batching.decisions import GoOn, Launch, Shed, Wait
from latebind.batching.depth import NO_LEVEL
from latebind.batching.picture import draw
from latebind.batching.policy import make_policy
from latebind.batching.requests import Lane, Models, Request
from latebind.batching.workers import ANY_SIZE, SubBatch, Worker
from latebind.domain.actions import Action, Outcome, Reply, Run, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.costs import Outlook
from latebind.domain.errors import IllegalEvent
from latebind.domain.events import (
    Arrived,
    Cancelled,
    Event,
    Exited,
    Limited,
    Loaded,
    LoadFailed,
    StageDone,
    StageFailed,
    Woke,
)
from latebind.domain.model import StageKind
from latebind.domain.picture import Picture
from latebind.domain.query import NOT_RUN
from latebind.residency.residency import Residency

RETRY = 0.5  # seconds until a model is tried again, if it has been refused for up to ten seconds
RETRY_SHARE = 0.05  # of the time for which a model has been refused: how long it waits until it is tried again
RETRY_AT_MOST = 10.0  # seconds; no model is refused by an estimate alone for longer


class Scheduler:
    """Admits, queues, launches and answers requests. Feed it every event in the order of time; perform every action."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.policy = make_policy(config.policy)
        self._sheds = config.policy.shed
        self._models = Models(order=self.policy.order)
        limit, counts_exits = config.policy.max_batch, self.policy.counts_exits
        lanes = [Lane(served, self._models, most=limit, counts_exits=counts_exits) for served in config.models]
        self._lanes = {lane.name: lane for lane in lanes}
        self._with_levels = [lane for lane in lanes if lane.depth is not None]
        self._workers: list[Worker] = []
        for number, granularity in enumerate(config.granularities or (ANY_SIZE,) * config.workers):
            worker = Worker(
                self._models, self.policy.table(), number=number, granularity=granularity, workers=self._workers
            )
            self._workers.append(worker)
        self._largest_first = sorted(self._workers, key=lambda worker: -worker.granularity)
        self._at_once = min(config.at_once or config.workers, config.workers)
        self._models.backlog.at_once = self._at_once
        self._residency: Residency | None = None
        if config.residency.budget:
            self._residency = Residency(config.residency, config.models, self._lanes, self._models, self._workers)
        self._live: dict[int, Request] = {}  # between arrival and reply
        self._queued = self._leaving = self._ended = 0
        self._last_starts: list[tuple[float, int]] = []  # heap: the latest time at which each queued one may start
        for lane in lanes:
            self._update_work(lane)
        self._wake = inf
        self._undecided = False  # whether an idle worker is at a stage boundary where it has a choice
        self._handlers: dict[type[Event], Callable[..., None]] = {
            Arrived: self._arrived,
            Cancelled: self._cancelled,
            StageDone: self._stage_done,
            Exited: self._exited,
            StageFailed: self._stage_failed,
            Loaded: self._loaded,
            LoadFailed: self._load_failed,
            Limited: self._limited,
            Woke: self._woke,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Handle one event that happened at `now` (seconds, never decreasing) and return the actions, in order.

        Raises `IllegalEvent`, with nothing changed, for an event that the state does not allow.
        """
        actions: list[Action] = []
        self._handlers[type(event)](event, now, actions)
        if self._queued or self._undecided or self._residency is not None:
            self._decide(event, now, actions)
        return actions

    def handle_all(self, events: Iterable[Event], now: float) -> list[Action]:
        """Handle events that happened at the same time, and decide once; there must be at least one."""
        actions: list[Action] = []
        for event in events:
            self._handlers[type(event)](event, now, actions)
        self._decide(event, now, actions)
        return actions

    def stats(self) -> dict[str, int]:
        """Return how many requests were accepted, are queued and running, and have ended since the start."""
        running = len(self._live) - self._queued
        accepted = self._ended + len(self._live)
        return {"accepted": accepted, "queued": self._queued, "running": running, "ended": self._ended}

    def tallies(self) -> dict[str, dict[str, int]]:
        """Return, by model, how many merges, preemptions and refills there were since the start."""
        return {
            model: {
                "merges": sum([worker.table.merges[model] for worker in self._workers]),
                "preemptions": sum([worker.table.preemptions[model] for worker in self._workers]),
                "refills": sum([worker.refills[model] for worker in self._workers]),
            }
            for model in self._lanes
        }

    def outlooks(self, models: Iterable[str], now: float, *, loaded: bool = False) -> dict[str, Outlook]:
        """Return what requests of `models` that arrive at `now` can expect, loads included unless `loaded`.

        That is by model, and by level of its operating curve (`level_name`).
        """
        wait, residency = 0.0, None if loaded else self._residency
        if self._running() == self._at_once:  # behind all that wait; what has started runs to the end of the network
            rests = [
                self._lanes[one.spec.name].estimate.rest(len(one.members), one.stage, one.step, one.length)
                for one in self._started()
                if one.members
            ]
            wait = (self._models.backlog.seconds + sum(rests)) / self._at_once
        waits = {model: wait if residency is None else max(wait, residency.load_seconds(model)) for model in models}
        found: dict[str, Outlook] = {}
        for model, seconds in waits.items():
            found |= self._lanes[model].outlooks(seconds, now)
        return found

    def curve(self, model: str) -> tuple[float, ...]:
        """Return the fidelities of the levels that requests of a model may run at, the highest first; none without."""
        lane = self._lanes[model]
        return () if lane.depth is None else lane.fidelities

    def picture(self, now: float) -> Picture:
        """Return what is under way at `now`, for the dashboard."""
        return draw(self._workers, self._lanes, self._residency, now)

    def check(self) -> None:
        """Raise `AssertionError` if an invariant does not hold."""
        started, requests = self._started(), self._live.values()
        members = {i for entry in started for i in entry.members}
        queued = {i for lane in self._lanes.values() for i in (*lane.queue, *lane.held)}
        assert sum([len(entry.members) for entry in started]) == len(members), "a request runs twice"
        assert not members & queued, "a request is queued and running"
        assert members | queued == set(self._live), "a live request is neither queued nor running"
        assert len(queued) == self._queued, "the count of queued requests is off"
        assert self._leaving == sum([r.left for r in requests]), "the count of those that leave is off"
        assert queued == {r.id for r in requests if r.started == inf}, "a request has the wrong state"
        assert len({(r.model, r.slot) for r in requests}) == len(requests), "a slot has two owners"
        running = self._running()
        assert running <= self._at_once, "too many run at once"
        for worker in self._workers:
            begun = worker.running is None or worker.running in worker.table.entries
            assert begun, "a worker runs what it has not started"
            assert not (worker.rests and self._may_run()), "a worker has started something and is idle"
            assert all(entry.members or entry is worker.running for entry in worker.begun), "an empty batch waits"
        waits = self._models.requests and self._wake == inf and not running
        assert not waits, "requests wait, and no worker runs and no wake-up is due"
        self._models.check()
        if self._residency is not None:
            self._residency.check()

    # Events ---------------------------------------------------------------------------------------------------------

    def _arrived(self, event: Arrived, now: float, actions: list[Action]) -> None:
        model, requests, slots, due = event.model, event.requests, event.slots, event.deadline
        lane = self._lanes.get(model)
        if lane is None:
            raise IllegalEvent(f"requests {requests} are for {model!r}, which is not served")
        for i in requests:
            if i in self._live:
                raise IllegalEvent(f"a request of {requests} has arrived twice")
        if lane.estimate.changes != lane.changes:
            self._update_work(lane)
        refusal, seconds, slack = self._refusal(lane, event, now, actions)
        if refusal is Outcome.REFUSED_LATE and self._doubts(lane, event, now):
            self._update_work(lane)
            refusal, seconds, slack = self._refusal(lane, event, now, actions)
        if refusal is not None:
            actions.extend([Reply(i, model, refusal, NOT_RUN, seconds, 0.0, slack) for i in requests])
            return
        inputs, priority, sizes = event.inputs, event.priority, event.sizes
        for place, i in enumerate(requests):
            steps = inputs[place] if inputs else 1
            self._live[i] = request = Request(i, model, slots[place], due, now, steps, priority, slack, sizes=sizes)
            request.surest = event.level
            self._queued += 1
            lane.add(request)
            if self._sheds:
                heappush(self._last_starts, (due - lane.least(steps), i))
        if self._residency is not None:
            self._residency.arrived(model, requests, now)

    # A request waits for the work that the policy serves before it, and is refused if that or its own makes it late, or
    # if an accepted request that is served after it would be late because of it. The workers share the work of the
    # requests that may start. Those that wait for a model are work only once it is in memory. Of such models only the
    # one that is being loaded counts: which one is loaded next is still open.

    def _refusal(
        self, lane: Lane, event: Arrived, now: float, actions: list[Action]
    ) -> tuple[Outcome | None, float, float | None]:
        """Return why requests are refused, or None if they are accepted; the seconds until their model is expected,
        for refusals because of loading; and the slack in seconds: their own, or that of one that they would make late.
        """
        residency = self._residency
        if residency is not None and residency.is_backing_off(event.model, now):
            return Outcome.NOT_LOADED, 0.0, None
        slack = event.deadline - self._times(lane, event, now)[1]
        if len(lane) + len(event.requests) > lane.max_queued:
            return Outcome.REFUSED_FULL, 0.0, slack
        if slack >= 0.0 or not self._sheds:
            spare = inf
            if self._sheds and lane.open:  # of others, which these would make late
                turn = self.policy.order.turn(event.deadline, now, event.priority, event.requests[0])
                spare = self._models.backlog.spare(turn, len(event.requests) * lane.work(longest(event)), now)
            if spare >= 0.0:
                if not lane.estimate.doubted:
                    lane.refused_since = inf
                return None, 0.0, slack
            slack = spare
        elif residency is not None and event.deadline >= self._times(lane, event, now, is_there=True)[1]:
            seconds = residency.load_for_refused(event.model, event.requests, now, actions)
            if seconds is not None:
                return Outcome.REFUSED_LOADING, seconds, slack
        return Outcome.REFUSED_LATE, 0.0, slack

    def _doubts(self, lane: Lane, event: Arrived, now: float) -> bool:
        """Return whether requests were refused only for the estimate of their model, and it is doubted from now on.

        No launch corrects an estimate while nothing of the model runs. So until the next one, the model is assumed to
        need the least that any may. That happens `RETRY` seconds after the first such refusal and then repeatedly, less
        often the longer launches have shown nothing better: deadlines that no request can meet should not cost others
        more and more work.
        """
        start, end = self._times(lane, event, now, is_there=True)
        for_load = not lane.open and event.deadline >= end
        if for_load or event.deadline <= start or any(entry.spec is lane.spec for entry in self._started()):
            return False
        if lane.refused_since == inf:
            lane.refused_since = lane.doubted_at = now
            return False
        if now - lane.doubted_at < min(RETRY_AT_MOST, max(RETRY, RETRY_SHARE * (now - lane.refused_since))):
            return False
        lane.doubted_at = now
        lane.estimate.doubt()
        return True

    def _times(self, lane: Lane, event: Arrived, now: float, *, is_there: bool = False) -> tuple[float, float]:
        """Return when the last of new requests may start, behind loads and all work that goes first, and when it ends.

        With `is_there`, their model is assumed to be in memory.
        """
        turn = self.policy.order.turn(event.deadline, now, event.priority, event.requests[0])
        held, before = lane.held.ahead(turn), len(event.requests) - 1  # of this model
        work, loads = self._models.backlog.before(turn), 0.0
        at_once, residency = self._at_once, self._residency
        if residency is not None:
            loads = 0.0 if is_there else residency.seconds_to(event.model, now)
            name, least = residency.loading_model, max(loads, work / at_once)
            if name is not None and name != lane.name and residency.seconds_to(name, now) < least:
                other = self._lanes[name]
                work += other.held.ahead(turn) * other.seconds_per_request
        inputs = longest(event)
        each = lane.work(inputs) if before else lane.seconds_per_request
        start = now + max(loads, work / at_once) + (held + before) * each / at_once
        return start, start + lane.own(inputs, lane.queue.ahead(turn) + held + before)

    def _update_work(self, lane: Lane) -> None:
        lane.update_work(min(self.policy.batch_limit(lane), self._largest_first[0].granularity))

    def _cancelled(self, event: Cancelled, now: float, actions: list[Action]) -> None:
        request = self._live.get(event.request)  # none: its reply was under way when the client left
        if request is None or request.left:
            return
        if request.started == inf:
            self._end_queued(request, Outcome.CANCELLED, now, actions)
            return
        worker, batch = next((one, some) for one in self._workers for some in one.begun if request.id in some.members)
        if batch is worker.running:
            request.left = True
            self._leaving += 1
        else:  # it rests at a boundary: no stage is run for those who have all left
            self._end(batch.members.pop(request.id), Outcome.CANCELLED, now, actions, batch.stage - 1)
            worker.drop_empty()

    def _stage_done(self, event: StageDone, now: float, actions: list[Action]) -> None:
        worker, batch = self._busy(event.worker)
        members, stage, exited = batch.members, batch.stage, event.exited
        for i in exited:
            if i not in members:
                raise IllegalEvent(f"request {i} left a batch of worker {event.worker} that it is not in")
        # Members that a lookup beside the worker answered may have had the longest input.
        if batch.ran == len(members):
            size, launched_at = worker.launched
            estimate = self._lanes[batch.spec.name].estimate
            inputs = batch.length if batch.spec.kinds or estimate.by_length else 1
            estimate.observe(now - launched_at, size, batch.stage, inputs)
        if stage in batch.spec.lookups:
            self._lanes[batch.spec.name].observe_exits(stage, members.values(), [members[i] for i in exited])
        last = stage + 1 == batch.spec.stages and batch.kind is not StageKind.DECODER
        if last or exited:
            for i, left_at in worker.table.leaving(batch, tuple(members) if last else exited, stage):
                request = members.pop(i)
                outcome = Outcome.CANCELLED if last and request.left else Outcome.ANSWERED
                self._end(request, outcome, now, actions, left_at)
        if not last:
            if self._leaving or (self._sheds and batch.due < now):
                self._end_leaving(batch, now, actions, stage)
            if members:
                batch.advance()
        self._settle(worker, batch, now, actions)

    def _exited(self, event: Exited, now: float, actions: list[Action]) -> None:
        """End the requests that are still here; the others were answered just before, at the end of their network."""
        if not 0 <= event.worker < len(self._workers):
            raise IllegalEvent(f"there is no worker {event.worker} whose lookups could answer")
        worker = self._workers[event.worker]
        for entry in worker.begun:
            new = [i for i in event.requests if i in entry.members]
            if new:
                left = [entry.members[i] for i in new]
                self._lanes[entry.spec.name].observe_exits(event.stage, (), left)
            for i, left_at in worker.table.leaving(entry, new, event.stage):
                self._end(entry.members.pop(i), Outcome.ANSWERED, now, actions, left_at)
        worker.drop_empty()

    def _stage_failed(self, event: StageFailed, now: float, actions: list[Action]) -> None:
        """Find which request raised: each half of a batch runs again, so n requests take at most 2n - 1 runs.

        A request that raises alone fails. Policies are asked again once all others have passed the stage.
        """
        worker, batch = self._busy(event.worker)
        if batch.ran == 1:
            self._end_all(batch, Outcome.FAILED, now, actions)
        else:
            self._end_leaving(batch, now, actions, batch.stage - 1)
        if not batch.members:
            self._settle(worker, batch, now, actions)
            return
        if len(batch.members) > 1:
            worker.halve(batch)
        self._run(worker, batch, now, actions)

    def _settle(self, worker: Worker, batch: SubBatch, now: float, actions: list[Action]) -> None:
        """Put the sub-batch that has run in its new place; go on at once if no request waits."""
        for late in worker.late(now) if self._sheds else ():
            self._end_leaving(late, now, actions, late.stage - 1)
            worker.drop_empty()
        worker.running, table, residency = None, worker.table, self._residency
        if residency is not None and batch.members and not residency.is_resident(batch):
            table.take_out(batch, now)
            worker.aside.append(batch)
        else:
            table.settle(batch, now)
        if residency is not None:
            residency.touch(batch.spec.name)
        half = worker.next_half()
        if half is not None:
            self._run(worker, half, now, actions)
            return
        if residency is not None:
            self._resume_aside(worker, residency, now, actions)
            return
        only = None if self._queued else table.only_choice
        if only is not None:
            self._run(worker, only, now, actions)
        elif table.entries:
            self._undecided = True

    def _loaded(self, event: Loaded, now: float, actions: list[Action]) -> None:
        """Let sub-batches that were set aside go on if their stage is in memory now."""
        residency = self._require_residency(event)
        residency.loaded(event, now)
        for worker in self._workers:
            if worker.running is None:
                self._resume_aside(worker, residency, now, actions)

    def _resume_aside(self, worker: Worker, residency: Residency, now: float, actions: list[Action]) -> None:
        """At a stage boundary of a worker, put sub-batches whose next stage is in memory back into its table."""
        for batch in [entry for entry in worker.aside if residency.is_resident(entry)]:
            self._end_leaving(batch, now, actions, batch.stage - 1)
            if batch.members:
                worker.aside.remove(batch)
                worker.table.push(batch, now)
        worker.drop_empty()
        self._undecided = self._undecided or bool(worker.table.entries)

    def _load_failed(self, event: LoadFailed, now: float, actions: list[Action]) -> None:
        """End all requests that wait for the model, unless only a learned cache could not be loaded."""
        residency = self._require_residency(event)
        residency.failed(event, now)
        lane = self._lanes[event.model]
        if residency.memory.models[event.model].complete:
            return
        for request in [*lane.queue.values(), *lane.held.values()]:
            self._end_queued(request, Outcome.NOT_LOADED, now, actions)
        for worker in self._workers:
            for batch in worker.aside:
                if batch.spec is lane.spec:
                    self._end_all(batch, Outcome.NOT_LOADED, now, actions)
            worker.drop_empty()

    def _limited(self, event: Limited, now: float, actions: list[Action]) -> None:
        del now, actions
        lane = self._lanes.get(event.model)
        if lane is None or lane.depth is None or not 1 <= event.levels <= lane.levels:
            raise IllegalEvent(f"{event}: no such model is served, or it has no such levels")
        lane.depth.limit(event.levels)
        self._update_work(lane)

    def _busy(self, number: int) -> tuple[Worker, SubBatch]:
        """Return a worker and the sub-batch that it runs; raises `IllegalEvent` if it runs none."""
        worker = self._workers[number] if 0 <= number < len(self._workers) else None
        if worker is None or worker.running is None:
            raise IllegalEvent(f"worker {number} reports a stage but runs none")
        return worker, worker.running

    def _woke(self, event: Woke, now: float, actions: list[Action]) -> None:
        del event, actions
        if now >= self._wake:
            self._wake = inf

    # Decisions ------------------------------------------------------------------------------------------------------

    def _decide(self, last: Event, now: float, actions: list[Action]) -> None:
        """Decide which requests are too late, what is loaded and what runs; `last` is the latest event handled."""
        complete = not (type(last) is Arrived and last.more)
        if complete and self._sheds and (self._queued or self._undecided):
            self._end_late(now, actions)
        shed = True
        while shed:  # the last requests that could run may be gone, and what others wait for is loaded
            if self._residency is not None:
                actions.extend(self._residency.decide(now))
            shed = False
            if complete and (self._queued or self._undecided):
                shed = self._launch(now, actions) and self._residency is not None
                self._undecided = len(self._workers) > 1 and any(worker.rests for worker in self._workers)
        if self._residency is not None:
            idle = self._residency.gives_back_at
            if idle < inf and (self._wake <= now or idle < self._wake):
                self._ask_to_wake(idle, now, actions)

    def _launch(self, now: float, actions: list[Action]) -> bool:
        """Give work to each free worker; return whether requests were shed.

        Workers that left requests to others are asked again when these have started some.
        """
        ended, in_order = self._ended, self._largest_first
        while True:
            waiting, until = self._queued, None
            if len(in_order) > 1:  # those that have started something first
                in_order = sorted(self._largest_first, key=lambda worker: not worker.table.entries)
            for worker in in_order:
                wait = self._occupy(worker, now, actions)
                if wait is not None:
                    until = wait.until if until is None else min(until, wait.until)
            if len(self._workers) == 1 or self._queued == waiting:
                break
        too_late = nextafter(self._last_starts[0][0], inf) if self._last_starts else inf  # the first that waits
        if until is not None and self._models.requests:
            self._ask_to_wake(min(until, too_late), now, actions)
        elif self._residency is not None and self._last_starts:  # while its model is loaded
            self._ask_to_wake(too_late, now, actions)
        return self._ended > ended

    def _occupy(self, worker: Worker, now: float, actions: list[Action]) -> Wait | None:
        """Ask the policy until the worker runs, nothing is left for it to run, or it is to wait: then return that."""
        table = worker.table
        while worker.running is None and self._may_run():
            only = None if self._models.requests else table.only_choice
            if only is not None:
                self._run(worker, only, now, actions)
                break
            if not (self._models.requests or table.entries):
                break
            for lane in self._with_levels:
                if lane.queue:
                    self.policy.choose_level(lane, now)
            decision = self.policy.decide(worker, now)
            for lane in self._with_levels:
                lane.estimate_lowest()
            if isinstance(decision, Launch):
                self._start(worker, decision, now)
                self._run(worker, table.pick(-1), now, actions)
            elif isinstance(decision, GoOn):
                if not table.entries:  # all that it has started is set aside
                    break
                self._run(worker, table.pick(decision.place, decision.requests), now, actions)
            elif isinstance(decision, Shed):
                self._shed(worker, decision, now, actions)
            else:
                return decision
        return None

    def _shed(self, worker: Worker, decision: Shed, now: float, actions: list[Action]) -> None:
        for i in decision.requests:
            request = self._live[i]
            if request.started == inf:
                self._end_queued(request, Outcome.EXPIRED, now, actions)
                continue
            batch = next(entry for entry in worker.table.entries if i in entry.members)
            self._end(batch.members.pop(i), Outcome.EXPIRED, now, actions, batch.stage - 1)
            if not batch.members:
                worker.table.settle(batch, now)

    def _start(self, worker: Worker, launch: Launch, now: float) -> None:
        lane = self._lanes[launch.model]
        members = {i: lane.remove(i) for i in launch.requests}
        self._queued -= len(members)
        lane.start([*members.values()], now)
        if worker.table.entries:
            worker.refills[launch.model] += len(members)
        worker.table.push(SubBatch(lane.spec, members), now)
        if self._residency is not None:
            self._residency.touch(launch.model)

    def _ask_to_wake(self, at: float, now: float, actions: list[Action]) -> None:
        if at != self._wake or self._wake <= now:
            self._wake = at
            actions.append(WakeAt(at))

    def _require_residency(self, event: Event) -> Residency:
        if self._residency is None:
            raise IllegalEvent(f"{event} has come, but models are not loaded on demand")
        return self._residency

    def _run(self, worker: Worker, batch: SubBatch, now: float, actions: list[Action]) -> None:
        most = min(batch.spec.max_batch, worker.granularity)
        if len(batch.members) > most:  # what was set aside has come back to others at its stage
            batch = worker.table.part(batch, tuple(batch.members)[:most])
        worker.running = batch
        requests, slots, levels = batch.rows()
        batch.ran = len(requests)
        worker.launched = batch.ran, now
        actions.append(Run(worker.number, batch.spec.name, batch.stage, requests, slots, levels))

    def _started(self) -> list[SubBatch]:
        return [entry for worker in self._workers for entry in worker.begun]

    def _running(self) -> int:
        return sum([worker.running is not None for worker in self._workers])

    def _may_run(self) -> bool:
        return len(self._workers) == 1 or self._running() < self._at_once

    # Ends: each request has one, with one reply, whatever the cause -------------------------------------------------

    def _end(self, request: Request, outcome: Outcome, now: float, actions: list[Action], stage: int = NOT_RUN) -> None:
        """End a request that is no longer in any lane or sub-batch; `stage` is the last stage that it ran."""
        del self._live[request.id]
        self._ended += 1
        self._leaving -= request.left
        if outcome is Outcome.EXPIRED and request.level != NO_LEVEL:
            self._lanes[request.model].drop(request.level)
        started = request.started if request.started < now else now
        waited, ran = started - request.arrived, now - started
        actions.append(Reply(request.id, request.model, outcome, stage, waited, ran, request.slack))
        if self._residency is not None:
            self._residency.touch(request.model)

    def _end_queued(self, request: Request, outcome: Outcome, now: float, actions: list[Action]) -> None:
        self._lanes[request.model].remove(request.id)
        self._queued -= 1
        self._end(request, outcome, now, actions)

    def _end_all(self, batch: SubBatch, outcome: Outcome, now: float, actions: list[Action]) -> None:
        """End all members of a sub-batch."""
        for request in batch.members.values():
            self._end(request, Outcome.CANCELLED if request.left else outcome, now, actions, batch.stage - 1)
        batch.members.clear()

    def _end_leaving(self, batch: SubBatch, now: float, actions: list[Action], stage: int) -> None:
        """End members whose client has left or whose deadline has passed; `stage` is the last that they ran."""
        earliest = now if self._sheds else -inf
        for request in [r for r in batch.members.values() if r.deadline < earliest or r.left]:
            outcome = Outcome.CANCELLED if request.left else Outcome.EXPIRED
            self._end(batch.members.pop(request.id), outcome, now, actions, stage)

    def _end_late(self, now: float, actions: list[Action]) -> None:
        """End the queued requests that would be too late even if each started now, alone."""
        while self._last_starts:
            start, number = self._last_starts[0]
            request = self._live.get(number)
            if request is not None and request.started == inf:
                if start >= now:
                    return
                self._end_queued(request, Outcome.EXPIRED, now, actions)
            heappop(self._last_starts)


def longest(event: Arrived) -> int:
    """Return the steps of the longest input of a call, or the length of its rows."""
    return event.inputs[0] if len(event.inputs) == 1 else max(event.inputs, default=1)
