"""Requests that wait: those of each model in two orders, and the work of all that may start in the order of service.

Requests of priority 1, 2, ... go first in this order; those of priority 0, which named none, go last. Only queues know
of priorities: policies take the requests that these return. Without priorities, nothing has to be sorted. Pure.
"""

import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, IntEnum, auto
from itertools import islice
from math import inf

from latebind.domain.errors import IllegalEvent


class State(IntEnum):
    """The state of a request, which is forgotten when it has ended."""

    QUEUED = auto()
    RUNNING = auto()
    LEAVING = auto()


# The states that may follow each state; the end of a request (its reply) may follow any.
LEGAL_MOVES = {
    State.QUEUED: frozenset({State.RUNNING}),
    State.RUNNING: frozenset({State.LEAVING}),  # cancelled while a stage runs: it leaves when that stage has ended
    State.LEAVING: frozenset[State](),
}


# Looking a member up in its class takes ten times as long.
QUEUED, RUNNING, LEAVING = State.QUEUED, State.RUNNING, State.LEAVING


class Request:
    """One request. Times are in seconds. Not a dataclass, because mypyc compiles their constructors badly.

    `inputs` is the number of steps of its input; `steps` is the number of decoder steps that have run. Among requests
    that wait for its model, `priority` 1 goes first and 0 last. `slack` is the estimate made when it arrived. Other
    requests that were let past it have delayed it `preempted` times, by `delayed` seconds in all.
    """

    __slots__ = (
        "arrived",
        "deadline",
        "delayed",
        "id",
        "inputs",
        "model",
        "preempted",
        "priority",
        "slack",
        "slot",
        "started",
        "state",
        "steps",
    )

    def __init__(
        self,
        id: int,
        model: str,
        slot: int,
        deadline: float,
        arrived: float,
        inputs: int = 1,
        priority: int = 0,
        slack: float | None = None,
        started: float = inf,
        steps: int = 0,
    ) -> None:
        self.id = id
        self.model = model
        self.slot = slot
        self.deadline = deadline
        self.arrived = arrived
        self.inputs = inputs
        self.priority = priority
        self.slack = slack
        self.started = started
        self.steps = steps
        self.delayed = 0.0
        self.preempted = 0
        self.state: State = QUEUED

    def move(self, state: State) -> None:
        """Enter `state`. Raises `IllegalEvent`, and changes nothing, where the table of moves does not allow it."""
        if state not in LEGAL_MOVES[self.state]:
            raise IllegalEvent(f"request {self.id} is {self.state.name} and cannot become {state.name}")
        self.state = state


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


BLOCK = 32  # requests; a block is cut in two when it has twice as many


class Backlog:
    """Waiting requests in the order of their turns. `at_once` workers share the work.

    Each has the seconds of `work` that it takes of a worker, and the `latest` time at which it may start to be in time.
    """

    def __init__(self, at_once: int = 1) -> None:
        self.at_once = at_once
        self._turns: dict[int, Turn] = {}
        self._blocks: list[_Block] = []
        self._lasts: list[Turn] = []  # the last turn of each block

    def __len__(self) -> int:
        return len(self._turns)

    @property
    def seconds(self) -> float:
        """The work of all requests, for one worker."""
        return sum([self._added_up(block).seconds for block in self._blocks])

    def turn(self, request: int) -> Turn:
        """Return the turn of a request, which must be there."""
        return self._turns[request]

    def add(self, request: int, turn: Turn, work: float, latest: float) -> None:
        """Add a request that is not there."""
        self._turns[request] = turn
        if not self._blocks:
            self._blocks.append(_Block([], [], []))
            self._lasts.append(turn)
        place = min(bisect_left(self._lasts, turn), len(self._blocks) - 1)
        block = self._blocks[place]
        at = bisect_left(block.turns, turn)
        block.turns.insert(at, turn)
        block.works.insert(at, work)
        block.latest.insert(at, latest)
        block.stale = True
        self._lasts[place] = block.turns[-1]
        if len(block.turns) >= 2 * BLOCK:
            self._blocks.insert(place + 1, block.cut())
            self._lasts.insert(place, block.turns[-1])

    def remove(self, request: int) -> None:
        """Remove a request, which must be there."""
        place, at = self._find(request)
        del self._turns[request]
        block = self._blocks[place]
        del block.turns[at], block.works[at], block.latest[at]
        block.stale = True
        if block.turns:
            self._lasts[place] = block.turns[-1]
        else:
            del self._blocks[place], self._lasts[place]

    def weigh(self, request: int, work: float, latest: float) -> None:
        """Correct the figures of a request, which must be there."""
        place, at = self._find(request)
        block = self._blocks[place]
        block.works[at], block.latest[at], block.stale = work, latest, True

    def move(self, request: int, turn: Turn) -> None:
        """Give a request, which must be there, another turn."""
        place, at = self._find(request)
        work, latest = self._blocks[place].works[at], self._blocks[place].latest[at]
        self.remove(request)
        self.add(request, turn, work, latest)

    def before(self, turn: Turn) -> float:
        """Return the seconds of work of all whose turn comes before this one."""
        place = bisect_left(self._lasts, turn)
        work = sum([self._added_up(block).seconds for block in self._blocks[:place]])
        if place < len(self._blocks):
            block = self._blocks[place]
            work += sum(block.works[: bisect_left(block.turns, turn)])
        return work

    def spare(self, turn: Turn, work: float, now: float) -> float:
        """Return the slack of a request that would be late behind `work` more seconds at this turn; below 0.

        It is infinite where no request is made late. One that is late already does not count: what it waits for
        would otherwise be refused for nothing.
        """
        place = bisect_left(self._lasts, turn)
        ahead = sum([self._added_up(block).seconds for block in self._blocks[:place]])
        least = now + work / self.at_once
        for block in self._blocks[place:]:
            self._added_up(block)
            if block.least - ahead / self.at_once < least:
                start = ahead
                for other, seconds, latest in zip(block.turns, block.works, block.latest, strict=True):
                    slack = latest - start / self.at_once
                    if now <= slack < least and other > turn:
                        return slack - least
                    start += seconds
            ahead += block.seconds
        return inf

    def check(self) -> None:
        """Raise `AssertionError` where an invariant does not hold."""
        turns = [turn for block in self._blocks for turn in block.turns]
        assert turns == sorted(self._turns.values()), "the waiting work is out of order"
        assert self._lasts == [block.turns[-1] for block in self._blocks], "the last turns of blocks are off"
        for block in self._blocks:
            assert len(block.turns) == len(block.works) == len(block.latest) < 2 * BLOCK, "a block is off"

    def _added_up(self, block: "_Block") -> "_Block":
        if block.stale:
            ahead, least = 0.0, inf
            for work, latest in zip(block.works, block.latest, strict=True):
                least = min(least, latest - ahead / self.at_once)
                ahead += work
            block.seconds, block.least, block.stale = ahead, least, False
        return block

    def _find(self, request: int) -> tuple[int, int]:
        turn = self._turns[request]
        place = bisect_left(self._lasts, turn)
        return place, bisect_left(self._blocks[place].turns, turn)


class _Block:
    """Neighbours in the order. Where it is not `stale`, `seconds` is their work, and `least` the earliest time by which
    what goes before all of them must have been done for each to be in time."""

    __slots__ = ("latest", "least", "seconds", "stale", "turns", "works")

    def __init__(self, turns: list[Turn], works: list[float], latest: list[float]) -> None:
        self.turns = turns
        self.works = works
        self.latest = latest
        self.stale = True
        self.seconds = 0.0
        self.least = inf

    def cut(self) -> "_Block":
        """Remove the second half, and return it."""
        half = len(self.turns) // 2
        other = _Block(self.turns[half:], self.works[half:], self.latest[half:])
        del self.turns[half:], self.works[half:], self.latest[half:]
        self.stale = True
        return other
