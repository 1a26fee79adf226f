"""Who waits for a model, in two orders: of arrival and of deadlines. In both, who has a priority goes before others.

Priorities of 1 and more go before each other in their order and before those of 0, who name none. This is the only
place that knows of them: policies take whom the queue names first. Where nobody names one, nothing is sorted.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from itertools import islice
from math import inf

from latebind.batching.request import Request

LAST = 256  # where those stand who name no priority
NEWEST = 0.05  # of the mean gap between arrivals
AMONG = 2  # times as many as are wanted, from whom those of like length are taken


class Queue(Mapping[int, Request]):
    """Waiting requests by number; iteration is in the order of arrival. Policies only read."""

    def __init__(self) -> None:
        self._requests: dict[int, Request] = {}
        self._prior = 0  # how many name a priority
        self._deadlines: list[tuple[float, int]] = []  # ascending: most come in that order anyway
        self._arrivals = 0.0  # the sum of when they came
        self._last = inf  # when the last came
        self._gap = inf  # seconds between arrivals, the recent ones counting most

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
        """Return the `count` requests that have waited longest, of those with the first priorities."""
        requests = sorted(self._requests.values(), key=_rank) if self._prior else self._requests.values()
        return list(islice(requests, max(0, count)))

    @property
    def soonest(self) -> float:
        """The first of all deadlines; the queue must not be empty."""
        return self._deadlines[0][0]

    @property
    def latest(self) -> float:
        """The last of all deadlines; the queue must not be empty."""
        return self._deadlines[-1][0]

    def due_last(self, count: int) -> float:
        """Return when the first of those `count` is due whose deadlines come last; so many must wait."""
        return self._deadlines[-count][0]

    def urgent(self, count: int, *, due: float = -inf) -> list[Request]:
        """Return the `count` requests whose deadlines come first, of those with the first priorities.

        Those due before `due` are passed over, unless they have a priority.
        """
        first = 0 if due == -inf else bisect_left(self._deadlines, (due, -1))
        if self._prior:
            some = [self._requests[number] for _, number in self._deadlines]
            some = [r for place, r in enumerate(some) if place >= first or r.priority]
            return sorted(some, key=_rank)[: max(0, count)]
        return [self._requests[number] for _, number in self._deadlines[first : first + max(0, count)]]

    def alike(self, count: int) -> list[Request]:
        """Return the most urgent request and with it, of the next ones, those whose inputs are about as long.

        Together they pad least. `count` of twice as many: whoever is left out is the more urgent next time. Where
        somebody has a priority, lengths do not count.
        """
        if len(self) <= count or count < 2 or self._prior:
            return self.urgent(count)
        some = self.urgent(AMONG * count)
        length = some[0].inputs
        return sorted(some, key=lambda request: abs(request.inputs - length))[:count]

    def behind(self, priority: int) -> int:
        """Return how many wait who would go after a newcomer of `priority`."""
        return sum([_rank(request) > priority for request in self._requests.values()]) if priority else 0

    def rate(self, now: float) -> float:
        """Return how many requests come a second, of late, and no more than if the next came now.

        Many come together where many have been answered together, so a pause alone says little.
        """
        gap = self._gap
        if gap < now - self._last < inf:
            gap += NEWEST * (now - self._last - gap)
        return 1.0 / gap if gap > 0.0 else inf

    def waited(self, now: float) -> float:
        """Return how many seconds all have waited together."""
        return len(self) * now - self._arrivals

    def add(self, request: Request) -> None:
        """Append a request."""
        gap = request.arrived - self._last
        if gap >= 0.0:
            self._gap = gap if self._gap == inf else self._gap + NEWEST * (gap - self._gap)
        self._last = request.arrived
        self._arrivals += request.arrived
        self._requests[request.id] = request
        self._prior += request.priority > 0
        insort(self._deadlines, (request.deadline, request.id))

    def remove(self, number: int) -> Request:
        """Take a request out and return it."""
        request = self._requests.pop(number)
        self._prior -= request.priority > 0
        self._arrivals = self._arrivals - request.arrived if self._requests else 0.0
        del self._deadlines[bisect_left(self._deadlines, (request.deadline, number))]
        return request


def _rank(request: Request) -> int:
    return request.priority or LAST
