"""The requests that wait for a model, in two orders: of arrival and of deadlines. In both, priorities come first.

Requests of priority 1, 2, ... go first in this order; those of priority 0, which named none, go last. Only the queue
knows of priorities: policies take the requests that it returns. Without priorities, nothing has to be sorted.
"""

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from itertools import islice
from math import inf

from latebind.batching.request import Request

# When a request is served among those of all models, the lowest first: its place, its rank, the place that it would
# have without a priority, and its number.
Turn = tuple[float, int, float, int]


class Order(Enum):
    """What decides which model and which of its requests a policy serves next; priorities go first within a model."""

    ARRIVAL = "arrival"
    DEADLINE = "deadline"

    def place(self, deadline: float, arrived: float) -> float:
        """Return the place of a request in this order, the lowest first."""
        return deadline if self is Order.DEADLINE else arrived


LAST = 256  # the rank of requests without a priority
NEWEST = 0.05  # weight of the newest gap between arrivals in their mean
AMONG = 2  # requests of similar length are chosen among this many times the wanted number


class Queue(Mapping[int, Request]):
    """Waiting requests by number; iteration is in the order of arrival. Policies only read."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._prior: dict[int, Request] = {}  # those with a priority
        self._deadlines: list[tuple[float, int]] = []  # ascending, in which order most requests arrive anyway
        self._arrivals = 0.0  # sum of arrival times
        self._last = inf  # time of the last arrival
        self._gap = inf  # mean seconds between arrivals, exponentially weighted

    def __getitem__(self, number: int) -> Request:
        return self._requests[number]

    def __iter__(self) -> Iterator[int]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, number: object) -> bool:
        return number in self._requests

    @property
    def oldest(self) -> Request:
        """The request that has waited longest; the queue must not be empty."""
        return next(iter(self._requests.values()))

    def first(self, count: int) -> list[Request]:
        """Return `count` requests: by priority, then the oldest first."""
        requests = sorted(self._requests.values(), key=_rank) if self._prior else self._requests.values()
        return list(islice(requests, max(0, count)))

    def turn(self, order: Order) -> Turn:
        """Return the turn of the request that goes first, which is its model's; the queue must not be empty.

        Requests that arrived in the same moment go by their numbers, of whichever models they are.
        """
        if order is Order.DEADLINE:
            place, number = self._deadlines[0]
        else:
            place, number = self.oldest.arrived, self.oldest.id
        if not self._prior:
            return place, LAST, place, number
        turns = ((rank(r.priority), order.place(r.deadline, r.arrived), r.id) for r in self._prior.values())
        return place, *min(turns)

    @property
    def prior(self) -> Iterable[Request]:
        """The requests with a priority."""
        return self._prior.values()

    @property
    def soonest(self) -> float:
        """The earliest deadline; the queue must not be empty."""
        return self._deadlines[0][0]

    @property
    def latest(self) -> float:
        """The latest deadline; the queue must not be empty."""
        return self._deadlines[-1][0]

    def due_last(self, count: int) -> float:
        """Return the earliest of the `count` latest deadlines; at least `count` requests must wait."""
        return self._deadlines[-count][0]

    def urgent(self, count: int, *, due: float = -inf) -> list[Request]:
        """Return `count` requests: by priority, then the earliest deadline first.

        Requests due before `due` are skipped, unless they have a priority.
        """
        first = 0 if due == -inf else bisect_left(self._deadlines, (due, -1))
        if self._prior:
            by_deadline = [self._requests[number] for _, number in self._deadlines]
            eligible = [request for place, request in enumerate(by_deadline) if place >= first or request.priority]
            return sorted(eligible, key=_rank)[: max(0, count)]
        return [self._requests[number] for _, number in self._deadlines[first : first + max(0, count)]]

    def alike(self, count: int) -> list[Request]:
        """Return the most urgent request, and with it those of the next ones whose inputs are about as long.

        They need the least padding. `count` are taken from the `AMONG * count` most urgent; requests that are left out
        are more urgent the next time. Where a request has a priority, lengths do not count.
        """
        if len(self) <= count or count < 2 or self._prior:
            return self.urgent(count)
        candidates = self.urgent(AMONG * count)
        length = candidates[0].inputs
        return sorted(candidates, key=lambda request: abs(request.inputs - length))[:count]

    def ahead(self, place: float, priority: int, order: Order) -> int:
        """Return how many requests go before a new one at this place of the order."""
        if priority or self._prior:
            new = rank(priority)
            return sum(
                [
                    (rank(r.priority), order.place(r.deadline, r.arrived)) <= (new, place)
                    for r in self._requests.values()
                ]
            )
        if order is Order.DEADLINE:
            return bisect_right(self._deadlines, (place, sys.maxsize))
        return len(self)

    def passed(self, place: float, priority: int, order: Order) -> float:
        """Return the place of a new request among those of all models: the lowest of its own and those it passes."""
        if priority:
            for r in self._requests.values():
                if rank(r.priority) > priority:
                    place = min(place, order.place(r.deadline, r.arrived))
        return place

    def rate(self, now: float) -> float:
        """Return the recent arrivals per second, and no more than if the next request arrived now.

        A pause alone says little: where many requests were answered together, many arrive together.
        """
        gap = self._gap
        if gap < now - self._last < inf:
            gap += NEWEST * (now - self._last - gap)
        return 1.0 / gap if gap > 0.0 else inf

    def waited(self, now: float) -> float:
        """Return the sum of the seconds that the requests have waited."""
        return len(self) * now - self._arrivals

    def add(self, request: Request) -> None:
        """Append a request."""
        gap = request.arrived - self._last
        if gap >= 0.0:
            self._gap = gap if self._gap == inf else self._gap + NEWEST * (gap - self._gap)
        self._last = request.arrived
        self._arrivals += request.arrived
        self._requests[request.id] = request
        if request.priority:
            self._prior[request.id] = request
        insort(self._deadlines, (request.deadline, request.id))

    def remove(self, number: int) -> Request:
        """Remove a request and return it."""
        request = self._requests.pop(number)
        self._prior.pop(number, None)
        self._arrivals = self._arrivals - request.arrived if self._requests else 0.0
        del self._deadlines[bisect_left(self._deadlines, (request.deadline, number))]
        return request


def rank(priority: int) -> int:
    """Return the rank of a priority, the lowest first."""
    return priority or LAST


def _rank(request: Request) -> int:
    return request.priority or LAST
