"""The requests that have not ended: how many are in each state, which of them are too late, and how each ends."""

from collections.abc import Mapping
from heapq import heappop, heappush
from math import inf, nextafter

from latebind.batching.lane import Lane
from latebind.batching.request import LEAVING, QUEUED, RUNNING, Request
from latebind.batching.table import SubBatch
from latebind.domain.actions import Action, Outcome, Reply
from latebind.residency.residency import Residency

NOT_RUN = -1  # the last stage of a request that has run none


class LiveRequests:
    """All requests between arrival and reply. Each ends once, with one reply, whatever ends it.

    Where `sheds` is off, none is ever too late.
    """

    def __init__(self, lanes: Mapping[str, Lane], residency: Residency | None, *, sheds: bool) -> None:
        self.by_id: dict[int, Request] = {}
        self.accepted = 0
        self.ended = 0
        self.queued = 0
        self.leaving = 0  # their clients have left while a stage runs
        self._lanes = lanes
        self._residency = residency
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
        if self._residency is not None:
            self._residency.touch(request.model)

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
