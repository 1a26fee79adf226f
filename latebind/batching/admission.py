"""Requests from arrival to reply: the queue of each model, who is refused, and how each ends. Pure."""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf, nextafter
from typing import Protocol

from latebind.batching.costs import Estimate
from latebind.batching.policy import Models, ModelView
from latebind.batching.queue import LEAVING, NEWEST, QUEUED, RUNNING, Queue, Request, Turn, rank
from latebind.batching.table import SubBatch
from latebind.batching.workers import Crew
from latebind.domain.actions import Action, Outcome, Reply
from latebind.domain.config import ServedModel
from latebind.domain.costs import TYPICAL_STEPS, Outlook
from latebind.domain.events import Arrived

RETRY = 0.5  # seconds; so a model is tried again this long after the machine has been slow for up to ten seconds
RETRY_SHARE = 0.05  # of the time for which a model has been refused, it waits until it is tried again
RETRY_AT_MOST = 10.0  # seconds; no model is refused by an estimate alone for longer
WEIGHED = 0.1  # relative change of the work of a request at which that of those who wait is corrected


class Lane:
    """The queues of one model and the work of its requests, counting on exits where it `hopes` for them.

    It adds itself to `models` and keeps the totals there up to date.
    """

    def __init__(self, served: ServedModel, models: Models, *, hopes: bool) -> None:
        self.spec = served.spec
        self.max_queued = served.max_queued
        self.queue = Queue()  # requests that may start
        self.held = Queue()  # requests that may not start yet, because their model is not in memory
        self.open = True
        self.estimate = Estimate(served.spec, served.costs)
        self.view = ModelView(served.spec, self.estimate, self.queue)
        self._models = models
        models.append(self.view)
        self.seconds_per_request = 0.0  # average work of a worker, in batches that the policy forms
        self._weighed = 0.0  # `seconds_per_request` when the work of waiting requests was last corrected
        self.changes = -1  # `Estimate.changes` when that was computed
        self._limit = 1  # the largest batch that the policy forms
        self._inputs = float(TYPICAL_STEPS)  # mean input steps of a model with a decoder, exponentially weighted
        self._hopes = hopes and self.estimate.exits
        self._refused_since = inf  # when a request was first refused for the estimate, if none was accepted since
        self._doubted_at = -inf  # when the estimate was last doubted, or that was

    def __len__(self) -> int:
        return len(self.queue) + len(self.held)

    @property
    def oldest(self) -> Request:
        """The request that has waited longest; at least one must wait."""
        if not self.queue or not self.held:
            return (self.queue or self.held).oldest
        return min(self.queue.oldest, self.held.oldest, key=lambda request: request.id)

    def turn(self, deadline: float, arrived: float, priority: int, number: int) -> Turn:
        """Return the turn of a new request among those of all models that may start.

        With a priority it passes others of its model, and so comes when the first of these would have come.
        """
        order = self._models.order
        own = order.place(deadline, arrived)
        return self.queue.passed(own, priority, order), rank(priority), own, number

    def ahead(self, place: float, priority: int) -> tuple[int, int]:
        """Return how many queued and held requests of this model go before a new one at this place of the order."""
        order = self._models.order
        return self.queue.ahead(place, priority, order), self.held.ahead(place, priority, order)

    def pulled(self, turn: Turn) -> float:
        """Return the work of those with a priority whose own turn comes later than that of a new request, which must
        wait for them."""
        return len(self._pulled(turn)) * self.seconds_per_request if turn[1] > 1 else 0.0

    def _pulled(self, turn: Turn) -> list[Request]:
        backlog = self._models.backlog
        return [r for r in self.queue.prior if r.priority < turn[1] and backlog.turn(r.id) > turn]

    def waited(self, now: float) -> float:
        """Return the sum of the seconds that the requests have waited."""
        return self.queue.waited(now) + self.held.waited(now)

    def add(self, request: Request) -> None:
        """Queue a request, or hold it while the lane is closed."""
        if self.estimate.decoder is not None:
            self._inputs += NEWEST * (request.inputs - self._inputs)
        if self.open:
            self._enqueue(request)
        else:
            self.held.add(request)

    def remove(self, request: int) -> None:
        """Remove a waiting request."""
        if request in self.queue:
            self._dequeue(request)
        else:
            self.held.remove(request)

    def take(self, requests: Sequence[int]) -> dict[int, Request]:
        """Remove requests that start, and return them by id."""
        return {i: self._dequeue(i) for i in requests}

    def accepted(self) -> None:
        """Note that a request has been accepted."""
        if not self.estimate.doubted:
            self._refused_since = inf

    def doubts(self, now: float) -> bool:
        """Note that a request was refused for the estimate while nothing of the model ran; return whether to doubt it.

        If so, until a launch shows more the model is taken to need the least that is believed of any. That happens
        `RETRY` seconds after the first such refusal and then again and again, and less often the longer launches have
        shown nothing better: what no request can meet should not cost others more and more work.
        """
        if self._refused_since == inf:
            self._refused_since = self._doubted_at = now
            return False
        if now - self._doubted_at < min(RETRY_AT_MOST, max(RETRY, RETRY_SHARE * (now - self._refused_since))):
            return False
        self._doubted_at = now
        self.estimate.doubt()
        return True

    def release(self, before: float = inf) -> None:
        """Move held requests with an id below `before` to the queue, so that they may start."""
        for request in [request for request in self.held.values() if request.id < before]:
            self.held.remove(request.id)
            self._enqueue(request)

    def withhold(self) -> None:
        """Close the lane, and hold all requests that have not started."""
        self.open = False
        for request in list(self.queue):
            self.held.add(self._dequeue(request))

    def _enqueue(self, request: Request) -> None:
        backlog = self._models.backlog
        turn = self.turn(request.deadline, request.arrived, request.priority, request.id)
        for prior in self._pulled(turn):
            backlog.move(prior.id, (turn[0], *backlog.turn(prior.id)[1:]))
        self.queue.add(request)
        self._models.enqueued(self.view, 1)
        backlog.add(request.id, turn, self.seconds_per_request, request.deadline - self.least(request.inputs))

    def _dequeue(self, number: int) -> Request:
        request = self.queue.remove(number)
        self._models.dequeued(self.view, 1)
        self._models.backlog.remove(number)
        return request

    def update_work(self, limit: int) -> None:
        """Recompute the work of each request, in batches of `limit`, because costs have moved noticeably."""
        self.changes, self._limit = self.estimate.changes, limit
        if self._hopes:
            seconds = self.estimate.work(limit)
        else:
            inputs = 1 if self.estimate.decoder is None else round(self._inputs)
            seconds = self.estimate.whole(limit, inputs, self.estimate.mean_outputs) / limit
        self.seconds_per_request = seconds
        if abs(seconds - self._weighed) > WEIGHED * self._weighed:
            self._weighed = seconds
            for request in self.queue.values():
                latest = request.deadline - self.least(request.inputs)
                self._models.backlog.weigh(request.id, seconds, latest)

    def own(self, inputs: int, before: int) -> float:
        """Return the seconds that a new request takes once it starts, with `before` requests waiting ahead of it.

        With a decoder and at least a full batch ahead, it is taken to run in a full batch and to have a long answer,
        because policies then start only requests that will be in time even so. Otherwise it may run alone.
        """
        if self.estimate.decoder is None or before < self._limit:
            return self.least(inputs)
        return self.estimate.whole(self._limit, inputs)

    def least(self, inputs: int) -> float:
        """Return the least seconds that a request takes."""
        return self.estimate.least(inputs, self._hopes)

    def outlook(self, wait: float) -> Outlook:
        """Return what a request can expect that runs alone after waiting `wait` seconds."""
        if self.estimate.decoder is not None:
            return Outlook(wait, (self.estimate.whole(1, 1, self.estimate.mean_outputs),), (1.0,))
        return Outlook(wait, *self.estimate.ends())


class Loads(Protocol):
    """What admission has to know where models are loaded on demand."""

    def is_backing_off(self, name: str, now: float) -> bool:
        """Return whether a load of the model has failed, and it is too early for the next attempt."""

    def seconds_to(self, name: str, now: float) -> float:
        """Return the seconds until a model may start, if it is loaded right after the load that is under way."""

    @property
    def loading_model(self) -> str | None:
        """The name of the model that is being loaded."""

    def load_for_refused(self, name: str, requests: Sequence[int], now: float, actions: list[Action]) -> float | None:
        """Note requests that are refused only because their model is not in memory; load it where that pays.

        Returns the seconds until the model is expected, or None where it is not going to be loaded.
        """


class Admission:
    """Refuses requests where a queue is full and, where it `sheds`, requests that cannot be in time.

    A request waits for the work that the policy serves before it, and is refused where that or its own leaves it late.
    It may delay those that are served after it as long as they are in time themselves, for they have been accepted; it
    is refused where one of them would be late for it.

    The workers share the work of the requests that may start. Requests that wait for a model are work only once it is
    in memory. Of such models only the one that is being loaded counts: which is loaded after it is still open.
    """

    def __init__(
        self, lanes: Mapping[str, Lane], models: Models, loads: Loads | None, crew: Crew, *, sheds: bool
    ) -> None:
        self._lanes = lanes
        self._models = models
        self._loads = loads
        self._crew = crew
        self._at_once = crew.at_once
        self._sheds = sheds

    def refusal(
        self, lane: Lane, event: Arrived, now: float, actions: list[Action]
    ) -> tuple[Outcome | None, float, float | None]:
        """Return why requests are refused, or None where they are accepted, then two figures.

        The first is the seconds until their model is expected, for refusals because of loading. The second is the slack
        in seconds, None where no slack was computed: their own, or that of another request that they would make late.
        """
        if self._loads is not None and self._loads.is_backing_off(event.model, now):
            return Outcome.NOT_LOADED, 0.0, None
        turn = lane.turn(event.deadline, now, event.priority, event.requests[0])
        slack = self._slack(lane, event, turn, now)
        if len(lane) + len(event.requests) > lane.max_queued:
            return Outcome.REFUSED_FULL, 0.0, slack
        if slack >= 0.0 or not self._sheds:
            spare = inf
            if self._sheds and lane.open:  # of others, which these would make late
                spare = self._models.backlog.spare(turn, len(event.requests) * lane.seconds_per_request, now)
            if spare >= 0.0:
                lane.accepted()
                return None, 0.0, slack
            slack = spare
        elif self._loads is not None and self._slack(lane, event, turn, now, is_there=True) >= 0.0:
            seconds = self._loads.load_for_refused(event.model, event.requests, now, actions)
            if seconds is not None:
                return Outcome.REFUSED_LOADING, seconds, slack
        return Outcome.REFUSED_LATE, 0.0, slack

    def doubts(self, lane: Lane, event: Arrived, now: float) -> bool:
        """Return whether requests were refused for the estimate of their model alone, and it is doubted from now on.

        No launch corrects an estimate while nothing of the model runs.
        """
        turn = lane.turn(event.deadline, now, event.priority, event.requests[0])
        if not lane.open and self._slack(lane, event, turn, now, is_there=True) >= 0.0:  # it is refused for the load
            return False
        alone = event.deadline > self._start(lane, event, turn, now, is_there=True)
        return alone and not any(entry.spec is lane.spec for entry in self._crew.started()) and lane.doubts(now)

    def _slack(self, lane: Lane, event: Arrived, turn: Turn, now: float, *, is_there: bool = False) -> float:
        """Return the slack of requests in seconds, behind the load of their model and all work that goes first.

        With `is_there`, their model is taken to be in memory.
        """
        inputs, before = event.inputs, len(event.requests) - 1
        longest = inputs[0] if len(inputs) == 1 else max(inputs, default=1)
        if len(lane):
            before += sum(lane.ahead(turn[2], event.priority))
        return event.deadline - (self._start(lane, event, turn, now, is_there=is_there) + lane.own(longest, before))

    def _start(self, lane: Lane, event: Arrived, turn: Turn, now: float, *, is_there: bool) -> float:
        """Return the time at which the last of new requests may start: behind loads, and work that goes first."""
        held = lane.ahead(turn[2], event.priority)[1] if lane.held else 0
        own = (held + len(event.requests) - 1) * lane.seconds_per_request
        work, loads = self._models.backlog.before(turn) + lane.pulled(turn), 0.0
        if self._loads is not None:
            loads = 0.0 if is_there else self._loads.seconds_to(event.model, now)
            name, before = self._loads.loading_model, max(loads, work / self._at_once)
            if name is not None and name != lane.spec.name and self._loads.seconds_to(name, now) < before:
                other = self._lanes[name]
                work += other.ahead(turn[0], 0)[1] * other.seconds_per_request
        return now + max(loads, work / self._at_once) + own / self._at_once


NOT_RUN = -1  # the last stage of a request that has run none


class LiveRequests:
    """All requests between arrival and reply. Each ends once, with one reply, whatever ends it.

    Where `sheds` is off, none is ever too late. `touch` is told the model of each that ends.
    """

    def __init__(self, lanes: Mapping[str, Lane], touch: Callable[[str], None], *, sheds: bool) -> None:
        self.by_id: dict[int, Request] = {}
        self.accepted = 0
        self.ended = 0
        self.queued = 0
        self.leaving = 0  # their clients have left while a stage runs
        self._lanes = lanes
        self._touch = touch
        self._sheds = sheds
        self._last_starts: list[tuple[float, int]] = []  # heap: the latest time at which each queued one may start

    def __len__(self) -> int:
        return len(self.by_id)

    @property
    def next_late(self) -> float:
        """The time at which the first queued request becomes too late, inf where none ever does."""
        return nextafter(self._last_starts[0][0], inf) if self._last_starts else inf

    def add(self, request: Request) -> None:
        """Queue a request that has arrived."""
        lane = self._lanes[request.model]
        self.by_id[request.id] = request
        self.accepted += 1
        self.queued += 1
        lane.add(request)
        if self._sheds:
            heappush(self._last_starts, (request.deadline - lane.least(request.inputs), request.id))

    def start(self, members: Mapping[int, Request], now: float) -> None:
        """Note that requests, which their lane has given away, run from now on."""
        self.queued -= len(members)
        for request in members.values():
            request.move(RUNNING)
            request.started = now

    def let_leave(self, request: Request) -> None:
        """Note that the client of a running request has left: it ends when its stage has ended."""
        request.move(LEAVING)
        self.leaving += 1

    def end(self, request: Request, outcome: Outcome, now: float, actions: list[Action], stage: int = NOT_RUN) -> None:
        """End a request that no lane and no sub-batch has any more; `stage` is the last stage that it ran."""
        del self.by_id[request.id]
        self.ended += 1
        if request.state is LEAVING:
            self.leaving -= 1
        started = request.started if request.started < now else now
        waited, ran = started - request.arrived, now - started
        actions.append(Reply(request.id, request.model, outcome, stage, waited, ran, request.slack))
        self._touch(request.model)

    def end_queued(self, request: Request, outcome: Outcome, now: float, actions: list[Action]) -> None:
        """End a request that has not started."""
        self._lanes[request.model].remove(request.id)
        self.queued -= 1
        self.end(request, outcome, now, actions)

    def end_all(self, batch: SubBatch, outcome: Outcome, now: float, actions: list[Action], stage: int) -> None:
        """End all members of a sub-batch; `stage` is the last that it ran."""
        for request in batch.members.values():
            end = Outcome.CANCELLED if request.state is LEAVING else outcome
            self.end(request, end, now, actions, stage)
        batch.members.clear()

    def end_leaving(self, batch: SubBatch, stage: int, now: float, actions: list[Action]) -> None:
        """End members whose client has left or whose deadline has passed; `stage` is the last that they ran."""
        earliest = now if self._sheds else -inf
        for request in [r for r in batch.members.values() if r.deadline < earliest or r.state is LEAVING]:
            outcome = Outcome.CANCELLED if request.state is LEAVING else Outcome.EXPIRED
            self.end(batch.members.pop(request.id), outcome, now, actions, stage)

    def end_late(self, now: float, actions: list[Action]) -> None:
        """End the queued requests that would be too late even if each started now, alone."""
        while self._last_starts:
            start, number = self._last_starts[0]
            request = self.by_id.get(number)
            if request is not None and request.state is QUEUED:
                if start >= now:
                    return
                self.end_queued(request, Outcome.EXPIRED, now, actions)
            heappop(self._last_starts)

    def check(self, members: set[int]) -> None:
        """Raise `AssertionError` where an invariant does not hold; `members` are those of all sub-batches."""
        queued = {i for lane in self._lanes.values() for i in (*lane.queue, *lane.held)}
        requests = self.by_id.values()
        assert self.accepted == self.ended + len(self), "accepted is not queued + running + ended"
        assert not members & queued, "a request is queued and running"
        assert members | queued == set(self.by_id), "a live request is neither queued nor running"
        assert len(queued) == self.queued, "the count of queued requests is off"
        assert self.leaving == sum([r.state is LEAVING for r in requests]), "the count of who leaves"
        assert all(self.by_id[i].state is QUEUED for i in queued), "a queued request has another state"
        assert all(self.by_id[i].state is not QUEUED for i in members), "a running request counts as queued"
        assert len({(r.model, r.slot) for r in requests}) == len(self), "a slot has two owners"
