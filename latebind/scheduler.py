"""The scheduler: the only place where requests change state. `handle(event, now)` returns the actions to perform.

Pure: no torch, asyncio, threads, sockets or clock. The live engine and the simulator drive this same code.
"""

from collections.abc import Callable, Iterable
from math import inf

from latebind.batching.decisions import GoOn, Launch, Shed, Wait
from latebind.batching.picture import draw
from latebind.batching.policy import make_policy
from latebind.batching.requests import LEAVING, NOT_RUN, QUEUED, RUNNING, Lane, LiveRequests, Models, Request
from latebind.batching.workers import Crew, SubBatch, Worker
from latebind.domain.actions import Action, Outcome, Reply, Run, WakeAt
from latebind.domain.config import SchedulerConfig
from latebind.domain.costs import Outlook
from latebind.domain.errors import IllegalEvent
from latebind.domain.events import Arrived, Cancelled, Event, Exited, Loaded, LoadFailed, StageDone, StageFailed, Woke
from latebind.domain.model import StageKind
from latebind.domain.picture import Picture
from latebind.residency.residency import Residency


class Scheduler:
    """Admits, queues, launches and answers requests. Feed it every event in the order of time; perform every action."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.policy = make_policy(config.policy)
        self._sheds = config.policy.shed
        self._models = Models(order=self.policy.order)
        limit, hopes = config.policy.max_batch, self.policy.counts_exits
        lanes = [Lane(served, self._models, most=limit, hopes=hopes) for served in config.models]
        self._lanes = {lane.name: lane for lane in lanes}
        tables = [self.policy.table() for _ in range(config.workers)]
        self._crew = Crew(self._models, tables, config.granularities, config.at_once)
        self._workers = self._crew.workers
        self._models.backlog.at_once = self._crew.at_once
        self._residency: Residency | None = None
        if config.residency.budget:
            self._residency = Residency(config.residency, config.models, self._lanes, self._models, self._crew)
        touch = (lambda model: None) if self._residency is None else self._residency.touch
        self._requests = LiveRequests(self._lanes, touch, sheds=self._sheds)
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
            Woke: self._woke,
        }

    def handle(self, event: Event, now: float) -> list[Action]:
        """Handle one event that happened at `now` (seconds, never decreasing) and return the actions, in order.

        Raises `IllegalEvent`, with nothing changed, for an event that the state does not allow.
        """
        actions: list[Action] = []
        self._handlers[type(event)](event, now, actions)
        if self._requests.queued or self._undecided or self._residency is not None:
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
        live = self._requests
        running = len(live.by_id) - live.queued
        return {"accepted": live.accepted, "queued": live.queued, "running": running, "ended": live.ended}

    def tallies(self) -> dict[str, dict[str, int]]:
        """Return, by model, how many merges, preemptions and refills there were since the start."""
        return {name: self._crew.tally(name) for name in self._lanes}

    def outlooks(self, models: Iterable[str], *, loaded: bool = False) -> dict[str, Outlook]:
        """Return what requests of `models` that arrive now can expect, loads included unless `loaded`."""
        wait, residency = self._crew.wait(), None if loaded else self._residency
        waits = {model: wait if residency is None else max(wait, residency.load_seconds(model)) for model in models}
        return {model: self._lanes[model].outlook(seconds) for model, seconds in waits.items()}

    def picture(self, now: float) -> Picture:
        """Return what is under way at `now`, for the dashboard."""
        return draw(self._workers, self._lanes, self._residency, now)

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        self._requests.check({i for entry in self._crew.started() for i in entry.members})
        self._crew.check()
        assert not (self._models.requests and self._wake == inf and not self._crew.running), (
            "requests wait, and no worker runs and no wake-up is due"
        )
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
            if i in self._requests.by_id:
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
        inputs, priority = event.inputs, event.priority
        for place, i in enumerate(requests):
            steps = inputs[place] if inputs else 1
            self._requests.add(Request(i, model, slots[place], due, now, steps, priority, slack))
        if self._residency is not None:
            self._residency.arrived(model, requests, now)

    # A request waits for the work that the policy serves before it, and is refused where that or its own makes it late.
    # It may delay those that are served after it as long as they are in time, for they have been accepted; it is
    # refused where one of them would be late for it. The workers share the work of the requests that may start. Those
    # that wait for a model are work only once it is in memory. Of such models only the one that is being loaded counts:
    # which is loaded after it is still open.

    def _refusal(
        self, lane: Lane, event: Arrived, now: float, actions: list[Action]
    ) -> tuple[Outcome | None, float, float | None]:
        """Return why requests are refused, or None where they are accepted, then two figures.

        The first is the seconds until their model is expected, for refusals because of loading. The second is the slack
        in seconds, None where no slack was computed: their own, or that of another request that they would make late.
        """
        residency = self._residency
        if residency is not None and residency.is_backing_off(event.model, now):
            return Outcome.NOT_LOADED, 0.0, None
        slack = event.deadline - self._end(lane, event, now)
        if len(lane) + len(event.requests) > lane.max_queued:
            return Outcome.REFUSED_FULL, 0.0, slack
        if slack >= 0.0 or not self._sheds:
            spare = inf
            if self._sheds and lane.open:  # of others, which these would make late
                turn = lane.turn(event.deadline, now, event.priority, event.requests[0])
                spare = self._models.backlog.spare(turn, len(event.requests) * lane.seconds_per_request, now)
            if spare >= 0.0:
                if not lane.estimate.doubted:
                    lane.refused_since = inf
                return None, 0.0, slack
            slack = spare
        elif residency is not None and event.deadline >= self._end(lane, event, now, is_there=True):
            seconds = residency.load_for_refused(event.model, event.requests, now, actions)
            if seconds is not None:
                return Outcome.REFUSED_LOADING, seconds, slack
        return Outcome.REFUSED_LATE, 0.0, slack

    def _doubts(self, lane: Lane, event: Arrived, now: float) -> bool:
        """Return whether requests were refused for the estimate of their model alone, and it is doubted from now on.

        No launch corrects an estimate while nothing of the model runs.
        """
        if not lane.open and event.deadline >= self._end(lane, event, now, is_there=True):  # it is refused for the load
            return False
        alone = event.deadline > self._start_of(lane, event, now, is_there=True)
        return alone and not any(entry.spec is lane.spec for entry in self._crew.started()) and lane.doubts(now)

    def _end(self, lane: Lane, event: Arrived, now: float, *, is_there: bool = False) -> float:
        """Return when new requests may end, behind the load of their model and all work that goes first.

        With `is_there`, their model is taken to be in memory.
        """
        inputs, before = event.inputs, len(event.requests) - 1
        longest = inputs[0] if len(inputs) == 1 else max(inputs, default=1)
        if len(lane):
            before += sum(lane.ahead(event.deadline, now, event.priority))
        return self._start_of(lane, event, now, is_there=is_there) + lane.own(longest, before)

    def _start_of(self, lane: Lane, event: Arrived, now: float, *, is_there: bool) -> float:
        """Return the time at which the last of new requests may start: behind loads, and work that goes first."""
        order = event.deadline, now, event.priority
        held = lane.ahead(*order)[1] if lane.held else 0
        own = (held + len(event.requests) - 1) * lane.seconds_per_request
        work, loads, at_once = (
            self._models.backlog.before(lane.turn(*order, event.requests[0])),
            0.0,
            self._crew.at_once,
        )
        if self._residency is not None:
            loads = 0.0 if is_there else self._residency.seconds_to(event.model, now)
            name, before = self._residency.loading_model, max(loads, work / at_once)
            if name is not None and name != lane.name and self._residency.seconds_to(name, now) < before:
                other = self._lanes[name]
                work += other.ahead(*order)[1] * other.seconds_per_request
        return now + max(loads, work / at_once) + own / at_once

    def _update_work(self, lane: Lane) -> None:
        largest = max(worker.granularity for worker in self._workers)
        lane.update_work(min(self.policy.batch_limit(lane), largest))

    def _cancelled(self, event: Cancelled, now: float, actions: list[Action]) -> None:
        request = self._requests.by_id.get(event.request)  # none: its reply was under way when the client left
        if request is not None and request.state is QUEUED:
            self._requests.end_queued(request, Outcome.CANCELLED, now, actions)
        elif request is not None and request.state is RUNNING:
            worker, batch = next(
                (one, some) for one in self._workers for some in one.begun if request.id in some.members
            )
            if batch is worker.running:
                request.state = LEAVING
                self._requests.leaving += 1
            else:  # it rests at a boundary: no stage is run for those who have all left
                self._requests.end(batch.members.pop(request.id), Outcome.CANCELLED, now, actions, batch.stage - 1)
                worker.drop_empty()

    def _stage_done(self, event: StageDone, now: float, actions: list[Action]) -> None:
        worker, batch = self._crew.busy(event.worker)
        members, stage, exited = batch.members, batch.stage, event.exited
        for i in exited:
            if i not in members:
                raise IllegalEvent(f"request {i} left a batch of worker {event.worker} that it is not in")
        # Members that a lookup beside the worker answered may have had the longest input.
        if batch.ran == len(members):
            size, launched_at = worker.launched
            inputs = batch.inputs if batch.spec.kinds else 1
            self._lanes[batch.spec.name].estimate.observe(now - launched_at, size, batch.stage, inputs)
        if stage in batch.spec.lookups:
            self._lanes[batch.spec.name].estimate.observe_exits(stage, len(members), len(exited))
        last = stage + 1 == batch.spec.stages and batch.kind is not StageKind.DECODER
        if last or exited:
            for i, left_at in worker.table.leaving(batch, tuple(members) if last else exited, stage):
                request = members.pop(i)
                outcome = Outcome.CANCELLED if last and request.state is LEAVING else Outcome.ANSWERED
                self._requests.end(request, outcome, now, actions, left_at)
        if not last:
            if self._requests.leaving or (self._sheds and batch.due < now):
                self._requests.end_leaving(batch.members, now, actions, stage)
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
                self._lanes[entry.spec.name].estimate.observe_exits(event.stage, 0, len(new))
            for i, left_at in worker.table.leaving(entry, new, event.stage):
                self._requests.end(entry.members.pop(i), Outcome.ANSWERED, now, actions, left_at)
        worker.drop_empty()

    def _stage_failed(self, event: StageFailed, now: float, actions: list[Action]) -> None:
        """Find whose request raised: of a batch each half runs again, so n requests take at most 2n - 1 runs.

        Whoever raises alone fails. Policies are asked again once all others have got past the stage.
        """
        worker, batch = self._crew.busy(event.worker)
        if batch.ran == 1:
            self._requests.end_all(batch.members, Outcome.FAILED, now, actions, batch.stage - 1)
        else:
            self._requests.end_leaving(batch.members, now, actions, batch.stage - 1)
        if not batch.members:
            self._settle(worker, batch, now, actions)
            return
        if len(batch.members) > 1:
            worker.halve(batch)
        self._run(worker, batch, now, actions)

    def _settle(self, worker: Worker, batch: SubBatch, now: float, actions: list[Action]) -> None:
        """Put the sub-batch that has run in its new place; go on at once where no request waits."""
        for late in worker.late(now) if self._sheds else ():
            self._requests.end_leaving(late.members, now, actions, late.stage - 1)
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
        going = None if self._requests.queued else table.going
        if going is not None:
            self._run(worker, going, now, actions)
        elif table.entries:
            self._undecided = True

    def _loaded(self, event: Loaded, now: float, actions: list[Action]) -> None:
        """Let sub-batches go on that were set aside for a stage that is in memory now."""
        residency = self._require_residency(event)
        residency.loaded(event, now)
        for worker in self._workers:
            if worker.running is None:
                self._resume_aside(worker, residency, now, actions)

    def _resume_aside(self, worker: Worker, residency: Residency, now: float, actions: list[Action]) -> None:
        """At a stage boundary of a worker, put sub-batches whose next stage is in memory back into its table."""
        for batch in [entry for entry in worker.aside if residency.is_resident(entry)]:
            self._requests.end_leaving(batch.members, now, actions, batch.stage - 1)
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
            self._requests.end_queued(request, Outcome.NOT_LOADED, now, actions)
        for worker in self._workers:
            for batch in worker.aside:
                if batch.spec is lane.spec:
                    self._requests.end_all(batch.members, Outcome.NOT_LOADED, now, actions, batch.stage - 1)
            worker.drop_empty()

    def _woke(self, event: Woke, now: float, actions: list[Action]) -> None:
        del event, actions
        if now >= self._wake:
            self._wake = inf

    # Decisions ------------------------------------------------------------------------------------------------------

    def _decide(self, last: Event, now: float, actions: list[Action]) -> None:
        """Decide which requests are too late, what is loaded and what runs; `last` is the latest event handled."""
        complete = not (type(last) is Arrived and last.more)
        if complete and self._sheds and (self._requests.queued or self._undecided):
            self._requests.end_late(now, actions)
        shed = True
        while shed:  # the last requests that could run may be gone, and what others wait for is loaded
            if self._residency is not None:
                actions.extend(self._residency.decide(now))
            shed = False
            if complete and (self._requests.queued or self._undecided):
                shed = self._launch(now, actions) and self._residency is not None
                self._undecided = len(self._workers) > 1 and any(worker.rests for worker in self._workers)

    def _launch(self, now: float, actions: list[Action]) -> bool:
        """Give work to each free worker; return whether requests were shed.

        Workers that left requests to others are asked again when these have started some.
        """
        ended = self._requests.ended
        while True:
            waiting, until = self._requests.queued, None
            for worker in self._crew.in_order():
                wait = self._occupy(worker, now, actions)
                if wait is not None:
                    until = wait.until if until is None else min(until, wait.until)
            if len(self._workers) == 1 or self._requests.queued == waiting:
                break
        if until is not None and self._models.requests:
            self._ask_to_wake(until, now, actions)
        elif self._residency is not None and self._requests.next_late < inf:  # while its model is loaded
            self._ask_to_wake(inf, now, actions)
        return self._requests.ended > ended

    def _occupy(self, worker: Worker, now: float, actions: list[Action]) -> Wait | None:
        """Ask the policy until the worker runs or nothing is left for it to run, or it is to wait: then return that."""
        table = worker.table
        while worker.running is None and self._crew.may_run():
            going = None if self._models.requests else table.going
            if going is not None:
                self._run(worker, going, now, actions)
                break
            if not (self._models.requests or table.entries):
                break
            decision = self.policy.decide(worker, now)
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
            request = self._requests.by_id[i]
            if request.state is QUEUED:
                self._requests.end_queued(request, Outcome.EXPIRED, now, actions)
                continue
            batch = next(entry for entry in worker.table.entries if i in entry.members)
            self._requests.end(batch.members.pop(i), Outcome.EXPIRED, now, actions, batch.stage - 1)
            if not batch.members:
                worker.table.settle(batch, now)

    def _start(self, worker: Worker, launch: Launch, now: float) -> None:
        members = self._requests.start(launch.model, launch.requests, now)
        if worker.table.entries:
            worker.refills[launch.model] += len(members)
        worker.table.push(SubBatch(self._lanes[launch.model].spec, members), now)
        if self._residency is not None:
            self._residency.touch(launch.model)

    def _ask_to_wake(self, until: float, now: float, actions: list[Action]) -> None:
        """Ask for a wake-up at `until`, or earlier, when the first queued request becomes too late."""
        wanted = min(until, self._requests.next_late)
        if wanted != self._wake or self._wake <= now:
            self._wake = wanted
            actions.append(WakeAt(wanted))

    def _require_residency(self, event: Event) -> Residency:
        if self._residency is None:
            raise IllegalEvent(f"{event} has come, and models are not loaded while requests come")
        return self._residency

    def _run(self, worker: Worker, batch: SubBatch, now: float, actions: list[Action]) -> None:
        most = min(batch.spec.max_batch, worker.granularity)
        if len(batch.members) > most:  # what was set aside has come back to others at its stage
            batch = worker.table.part(batch, tuple(batch.members)[:most])
        worker.running = batch
        requests, slots = batch.ids_and_slots()
        batch.ran = len(requests)
        worker.launched = batch.ran, now
        actions.append(Run(worker.number, batch.spec.name, batch.stage, requests, slots))
