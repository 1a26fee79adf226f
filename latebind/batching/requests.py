"""Requests that wait: those of each model, and the work of all in the order of service.

Requests of priority 1, 2, ... go first in this order; those of priority 0, the default, go last. Only queues know of
priorities: policies take the requests that these return. Without priorities, nothing has to be sorted. Pure.
"""

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from math import frexp, inf, ldexp, nan
from operator import attrgetter

from latebind.batching.costs import Estimate, Works
from latebind.batching.decisions import Launch
from latebind.batching.depth import NO_LEVEL, Depth, Misses
from latebind.domain.config import ServedModel
from latebind.domain.costs import Outlook, length_class
from latebind.domain.model import ModelSpec
from latebind.domain.query import level_name

LAST = 256  # the rank of requests without a priority
NEWEST = 0.05  # weight of the newest gap between arrivals, or of the newest input's length, in their mean
NEW_GAP = 0.01  # of the newest gap in the mean by which a level is chosen: by twenty gaps, levels would oscillate
LATEST_LENGTHS = 512  # requests, after which the counts of lengths are halved
RARELY = 0.01  # requests: a length with a count up to this is forgotten
AMONG = 2  # requests of similar length are chosen among this many times the wanted number


# When a request is served among those of all models, the lowest first: its rank, its place in the order, its number.
Turn = tuple[int, float, int]


class Request:
    """One request. Times are in seconds. Not a dataclass, because mypyc compiles their constructors badly.

    `inputs` is the number of steps of its input, or the length of a row of a model with named dimensions; then `sizes`
    are equal for rows of equal sizes. `steps` is the number of decoder steps that have run. Among requests that wait
    for its model, `priority` 1 goes first and 0 last. `slack` is the estimate made when it arrived. It waits until it
    has `started`; if its client has `left` meanwhile, it ends at the next stage boundary. Other requests that were let
    past it have delayed it `preempted` times, by `delayed` seconds in all.
    """

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
        sizes: int = 0,
    ) -> None:
        self.id = id
        self.model = model
        self.slot = slot
        self.deadline = deadline
        self.arrived = arrived
        self.inputs = inputs
        self.length = inputs  # in a lane, that of its class
        self.sizes = sizes
        self.priority = priority
        self.slack = slack
        self.started = started
        self.steps = steps
        self.level = NO_LEVEL  # of its model's operating curve, from its start on
        self.surest = 0  # level that it may run at
        self.droppable = False  # after its start (`batching.depth`)
        self.delayed = 0.0
        self.preempted = 0
        self.left = False
        self.turn: Turn = (LAST, inf, id)  # given by its queue


class Order(Enum):
    """What decides which model and which of its requests a policy serves next; those with a priority go first."""

    ARRIVAL = "arrival"
    DEADLINE = "deadline"

    def turn(self, deadline: float, arrived: float, priority: int, number: int) -> Turn:
        """Return the turn of a request; those that arrived in the same moment go by their numbers."""
        return priority or LAST, deadline if self is Order.DEADLINE else arrived, number


class Group:
    """Requests of about one length, or of equal sizes if only such share a batch.

    `turns` ascend; `length` is the longest that a request in it may have.
    """

    def __init__(self, length: int, sizes: int) -> None:
        self.length = length
        self.sizes = sizes
        self.turns: list[Turn] = []

    @property
    def place(self) -> tuple[int, int]:
        """Its place among other groups: the shortest are first."""
        return self.length, self.sizes


class Groups:
    """Requests of one model before one stage, in groups, the shortest first; empty ones are dropped."""

    def __init__(self, spec: ModelSpec, requests: Iterable[Request] = ()) -> None:
        self._one_size = spec.one_size
        self.ascending: list[Group] = []
        self._by_key: dict[int, Group] = {}
        for request in requests:
            self.of(request).turns.append(request.turn)
        for group in self.ascending:
            group.turns.sort()

    @classmethod
    def of_one(cls, spec: ModelSpec, length: int, turns: list[Turn]) -> "Groups":
        """Return a single group, of these requests of a model whose rows are all alike."""
        groups, group = cls(spec), Group(length, length)
        group.turns = turns
        groups.ascending, groups._by_key = [group], {length: group}
        return groups

    def of(self, request: Request) -> Group:
        """Return the group of a request, a new one if there is none."""
        key = request.sizes if self._one_size else request.length
        group = self._by_key.get(key)
        if group is None:
            group = self._by_key[key] = Group(request.length, key)
            insort(self.ascending, group, key=attrgetter("place"))
        return group

    def remove(self, request: Request) -> None:
        """Remove a request that is in its group."""
        group = self.of(request)
        del group.turns[bisect_left(group.turns, request.turn)]
        if not group.turns:
            del self._by_key[group.sizes]
            self.ascending.remove(group)


class Queue(dict[int, Request]):
    """Waiting requests by number; iteration is in the order of arrival. Policies only read.

    Those of a model with named dimensions are in `groups` too, unless they repeat steps (`alike`). If a batch must have
    one size, `first` returns only requests of one.
    """

    def __init__(self, order: Order, spec: ModelSpec | None = None) -> None:
        self._order = order
        self.groups = Groups(spec) if spec is not None and spec.dims and not spec.kinds else None
        self._one_size = spec is not None and spec.one_size
        self._turns: list[Turn] = []  # ascending, as most requests arrive anyway
        self._arrivals = 0.0  # sum of arrival times
        self._last = inf  # time of the last arrival
        self._gap = inf  # mean seconds between arrivals, exponentially weighted
        self._usual_gap = inf  # likewise, over more of them

    @property
    def oldest(self) -> Request:
        """The request that has waited longest; the queue must not be empty."""
        return next(iter(self.values()))

    @property
    def turn(self) -> Turn:
        """The turn of the request that goes first, which is its model's; the queue must not be empty."""
        return self._turns[0]

    @property
    def turns(self) -> list[Turn]:
        """The turns of all requests, ascending."""
        return self._turns

    def due_last(self, count: int) -> float:
        """Return the earliest of the `count` latest deadlines of at least as many requests, served by deadline."""
        if self._turns[0][0] == LAST:
            return self._turns[-count][1]
        return sorted([request.deadline for request in self.values()])[-count]

    def first(self, count: int, *, due: float = -inf) -> list[Request]:
        """Return the `count` requests whose turn is first.

        If they are served by deadline, those due before `due` are passed over, unless they have a priority.
        """
        turns, count = self._turns, max(0, count)
        if self._one_size and turns:
            turns = self._alike_first()
        if due > -inf:
            prior, rest = bisect_left(turns, (LAST, -inf, 0)), bisect_left(turns, (LAST, due, 0))
            turns = turns[: min(prior, count)] + turns[rest : rest + count]
        return [self[number] for _, _, number in turns[:count]]

    def _alike_first(self) -> list[Turn]:
        """Return the turns of all that may share a batch with the most urgent request."""
        assert self.groups is not None
        return self.groups.of(self[self._turns[0][2]]).turns

    def alike(self, count: int) -> list[Request]:
        """Return the most urgent request, and with it those of the next ones whose inputs are about as long.

        They need the least padding. `count` are taken from the `AMONG * count` most urgent; requests that are left out
        are more urgent the next time. If a request has a priority, lengths do not count.
        """
        if len(self) <= count or count < 2 or self._turns[0][0] < LAST:
            return self.first(count)
        candidates = self.first(AMONG * count)
        length = candidates[0].inputs
        return sorted(candidates, key=lambda request: abs(request.inputs - length))[:count]

    @property
    def shortest(self) -> int:
        """The length of the shortest request, or the steps of the most urgent one; the queue must not be empty."""
        return self.first(1)[0].inputs if self.groups is None else self.groups.ascending[0].length

    def ahead(self, turn: Turn) -> int:
        """Return how many requests go before a new one with this turn."""
        return bisect_left(self._turns, turn)

    def rate(self, now: float) -> float:
        """Return the recent arrivals per second, and no more than if the next request arrived now.

        A pause alone says little: after many requests were answered together, many arrive together.
        """
        gap = self._gap
        if gap < now - self._last < inf:
            gap += NEWEST * (now - self._last - gap)
        return 1.0 / gap if gap > 0.0 else inf

    def usual_rate(self, now: float) -> float:
        """Return the arrivals per second over a longer time than `rate`."""
        gap = self._usual_gap
        if gap < now - self._last < inf:
            gap += NEW_GAP * (now - self._last - gap)
        return 1.0 / gap if gap > 0.0 else inf

    def waited(self, now: float) -> float:
        """Return the sum of the seconds that the requests have waited."""
        return len(self) * now - self._arrivals

    def add(self, request: Request) -> None:
        """Append a request."""
        gap = request.arrived - self._last
        if gap >= 0.0:
            self._gap = gap if self._gap == inf else self._gap + NEWEST * (gap - self._gap)
            self._usual_gap = gap if self._usual_gap == inf else self._usual_gap + NEW_GAP * (gap - self._usual_gap)
        self._last = request.arrived
        self._arrivals += request.arrived
        self[request.id] = request
        request.turn = self._order.turn(request.deadline, request.arrived, request.priority, request.id)
        insort(self._turns, request.turn)
        if self.groups is not None:
            insort(self.groups.of(request).turns, request.turn)

    def remove(self, number: int) -> Request:
        """Remove a request and return it."""
        request = self.pop(number)
        if self.groups is not None:
            self.groups.remove(request)
        self._arrivals = self._arrivals - request.arrived if self else 0.0
        del self._turns[bisect_left(self._turns, request.turn)]
        return request


class Backlog:
    """The work of waiting requests, in seconds of a worker, in the order of their turns. `at_once` workers share it."""

    def __init__(self, at_once: int = 1) -> None:
        self.at_once = at_once
        self.total = 0.0  # nearly `seconds`, summed up as they come and go
        self._turns: list[Turn] = []  # ascending; the other lists are in the same order
        self._works: list[float] = []
        self._latest: list[float] = []  # when each may start at the latest to be in time
        self._stretched = nan, inf  # a time, and what `stretch` returns for it while nothing changes

    @property
    def seconds(self) -> float:
        """The work of all requests."""
        return sum(self._works)

    def add(self, turn: Turn, work: float, latest: float) -> None:
        """Add a request that is not there."""
        at = bisect_left(self._turns, turn)
        self._turns.insert(at, turn)
        self._works.insert(at, work)
        self._latest.insert(at, latest)
        self.total += work
        self._stretched = nan, inf

    def remove(self, turn: Turn) -> None:
        """Remove a request, which must be there."""
        at = bisect_left(self._turns, turn)
        self.total = self.total - self._works[at] if len(self._works) > 1 else 0.0
        del self._turns[at], self._works[at], self._latest[at]
        self._stretched = nan, inf

    def before(self, turn: Turn) -> float:
        """Return the work of all whose turn comes before this one."""
        return sum(self._works[: bisect_left(self._turns, turn)])

    def spare(self, turn: Turn, work: float, now: float) -> float:
        """Return the slack of the first request that would be late behind `work` more seconds at this turn; below 0.

        It is infinite if no request is made late. One that is late already does not count: others would be refused for
        nothing.
        """
        first = bisect_left(self._turns, turn)
        if first == len(self._turns):
            return inf
        least, behind = now + work / self.at_once, self._latest[first:]
        if min(behind) - sum(self._works) / self.at_once >= least:  # the usual case, in a fifth of the time
            return inf
        start = sum(self._works[:first])
        for seconds, latest in zip(self._works[first:], behind, strict=True):
            slack = latest - start / self.at_once
            if now <= slack < least:
                return slack - least
            start += seconds
        return inf

    def stretch(self, now: float) -> float:
        """Return how many times as long all work may take for all to be in time; those that are late do not count.

        If many wait, only some are checked, the fewer the further back, and the last one.
        """
        if self._stretched[0] == now:
            return self._stretched[1]
        least, work, latest, works = inf, 0.0, self._latest, self._works
        begin, last = 0, len(works) - 1
        while begin <= last:
            at = min(begin + begin // 2, last)
            work += sum(works[begin : at + 1])
            left = latest[at] - now
            if 0.0 <= left < least * work:
                least = left / work
            begin = at + 1
        self._stretched = now, least * self.at_once
        return self._stretched[1]

    def check(self, turns: Iterable[Turn]) -> None:
        """Raise `AssertionError` if an invariant does not hold; `turns` are those of all requests that may start."""
        assert self._turns == sorted(turns), "the waiting work is out of order"
        assert len(self._turns) == len(self._works) == len(self._latest), "the waiting work is incomplete"


class Models:
    """All models, in their order, with totals over their queues. Lanes update it; policies only read.

    `waiting` are the models with requests that may start, in the same order; the cost of a decision is proportional to
    their number. `requests` counts these requests, and `backlog` has their work, with learned caches the average work,
    in the `order` in which they are served.
    """

    def __init__(self, order: Order = Order.ARRIVAL) -> None:
        self.order = order
        self.backlog = Backlog()
        self.by_name: dict[str, Lane] = {}
        self.waiting: list[Lane] = []
        self.requests = 0
        self.decode = False  # whether any model has a decoder
        self.exit = False  # whether any model has requests that leave early
        self.lengths = False  # whether requests of any model differ in length
        self._demand = nan, 0.0  # a time, and what `demand` returns for it

    def demand(self, now: float) -> float:
        """Return how many workers the requests of all models keep busy at their rates; cached for the same time."""
        if self._demand[0] != now:
            lanes = self.by_name.values()
            self._demand = now, sum([lane.queue.usual_rate(now) * lane.seconds_per_request for lane in lanes])
        return self._demand[1]

    def check(self) -> None:
        """Raise `AssertionError` if an invariant does not hold."""
        assert self.waiting == [one for one in self.by_name.values() if one.queue], "the models with requests are off"
        assert self.requests == sum([len(model.queue) for model in self.waiting]), "the count of requests is off"
        self.backlog.check([request.turn for model in self.waiting for request in model.queue.values()])


class Lane:
    """One model: its requests that wait, and the estimate of how long its work takes. Policies only read.

    Those in the `queue` may start; those in `held` may not, because the model is not in memory. A batch has at most
    `most` requests; 0: as many as the model was built for. Their work is estimated with exits where it
    `counts_exits`. The totals of `models` are kept up to date.
    """

    def __init__(self, served: ServedModel, models: Models, *, most: int = 0, counts_exits: bool = False) -> None:
        self.spec = served.spec
        self.name = served.spec.name
        self.estimate = Estimate(served.spec, served.costs)
        self.depth: Depth | None = None
        self.overload = served.costs.overload
        # Of its operating curve, without the one for overload; 0: it has none.
        self.levels = len(served.costs.levels) - (self.overload is not None)
        if counts_exits and self.levels:
            dropped = 0.0 if self.overload is None else self.overload.dropped
            self.depth = Depth(self.estimate, self.levels, served.costs.target, served.below, dropped)
        self.queue = Queue(models.order, served.spec)
        self.held = Queue(models.order)
        self.most = min(most or served.spec.max_batch, served.spec.max_batch)
        self.max_queued = served.max_queued
        self.open = True
        self.seconds_per_request = 0.0  # average work of a worker, in batches that the policy forms
        self.changes = -1  # `Estimate.changes` when `seconds_per_request` was computed
        self.fidelities = tuple([level.fidelity for level in served.costs.levels[: self.levels]])
        self._level_names = [level_name(self.name, level) for level in range(self.levels)]
        self._works: list[float] = []  # by level of the operating curve
        self._misses: Misses | None = None  # at the overload level
        self._works_of = -1, 0, 0.0  # `changes`, the usual length and the limit of a batch when these were computed
        self._limit = 1  # the largest batch that the policy forms
        self._inputs = float(self.estimate.typical)  # mean steps or length of an input, exponentially weighted
        self.mix: dict[int, float] = {}  # by length class, how many of the latest requests had it
        self._mixed = 0.0  # the sum of these
        self.allowed = inf  # usual seconds from arrival to deadline, exponentially weighted
        self._counts_exits = counts_exits and self.estimate.exits
        self.refused_since = inf  # when a request was first refused for the estimate, if none was accepted since
        self.doubted_at = inf  # when the estimate was last doubted, or that refusal
        self._models = models
        self.place = len(models.by_name)
        models.by_name[self.name] = self
        models.decode = models.decode or self.estimate.decoder is not None
        models.exit = models.exit or self.estimate.exits
        models.lengths = models.lengths or self.queue.groups is not None

    def __len__(self) -> int:
        return len(self.queue) + len(self.held)

    @property
    def oldest(self) -> Request:
        """The request that has waited longest; at least one must wait."""
        if not self.queue or not self.held:
            return (self.queue or self.held).oldest
        return min(self.queue.oldest, self.held.oldest, key=lambda request: request.id)

    def waited(self, now: float) -> float:
        """Return the sum of the seconds that the requests have waited."""
        return self.queue.waited(now) + self.held.waited(now)

    # Requests that come and go --------------------------------------------------------------------------------------

    def add(self, request: Request) -> None:
        """Queue a request, or hold it while the lane is closed."""
        if self.estimate.decoder is not None or self.estimate.by_length:
            self._inputs += NEWEST * (request.inputs - self._inputs)
        if self.queue.groups is not None:
            self._note(request)
        if self.open:
            self._enqueue(request)
        else:
            self.held.add(request)

    def _note(self, request: Request) -> None:
        """Note the length of a new request, and how much time it has."""
        request.length = length = self.classed(request.inputs)
        allowed = request.deadline - request.arrived
        self.allowed = allowed if self.allowed == inf else self.allowed + NEWEST * (allowed - self.allowed)
        self.mix[length] = self.mix.get(length, 0.0) + 1.0
        self._mixed += 1.0
        if self._mixed > LATEST_LENGTHS:
            self.mix = {length: 0.5 * count for length, count in self.mix.items() if count > RARELY}
            self._mixed = sum(self.mix.values())

    def expected(self, now: float) -> float:
        """Return how many requests come until the deadline of one that comes now, for each that `mix` counts."""
        return self.queue.rate(now) * self.allowed / max(1.0, self._mixed)

    def remove(self, request: int) -> Request:
        """Remove a waiting request, and return it."""
        return self._dequeue(request) if request in self.queue else self.held.remove(request)

    def release(self) -> None:
        """Open the lane: all requests may start."""
        self.open = True
        for request in list(self.held):
            self._enqueue(self.held.remove(request))

    def withhold(self) -> None:
        """Close the lane, and hold all requests that have not started."""
        self.open = False
        for request in list(self.queue):
            self.held.add(self._dequeue(request))

    def _enqueue(self, request: Request) -> None:
        if not self.queue:
            insort(self._models.waiting, self, key=attrgetter("place"))
        self.queue.add(request)
        self._models.requests += 1
        latest = request.deadline - self.least(request.inputs)
        self._models.backlog.add(request.turn, self.work(request.inputs), latest)

    def _dequeue(self, number: int) -> Request:
        request = self.queue.remove(number)
        if not self.queue:
            self._models.waiting.remove(self)
        self._models.requests -= 1
        self._models.backlog.remove(request.turn)
        return request

    def launch(self, requests: Iterable[Request]) -> Launch:
        """Return the decision to start these requests."""
        return Launch(self.name, tuple([request.id for request in requests]))

    # How sure its learned caches must be ------------------------------------------------------------------------------

    def choose_level(self, now: float) -> None:
        """Choose the level of its operating curve for requests that start now; figures are for it from now on."""
        assert self.depth is not None, "the model has no operating curve"
        models, rate, others = self._models, self.queue.usual_rate(now), 0.0
        if len(models.by_name) > 1:
            others = models.demand(now) - rate * self.seconds_per_request
        free = max(0.0, models.backlog.at_once - max(0.0, others)) / rate if rate > 0.0 else inf
        self.depth.choose(self._level_works, models.backlog.stretch(now), free, self._misses)

    def estimate_lowest(self) -> None:
        """Set figures to the lowest level again: requests that could be in time at it are not refused."""
        if self.depth is not None:
            self.depth.estimate_lowest()

    def start(self, requests: Sequence[Request], now: float) -> None:
        """Start these requests, each at the level that was chosen, or at a lower one of its own."""
        for request in requests:
            request.started = now
        if self.depth is not None:
            droppable = self.depth.may_drop
            levels = self.depth.start([request.surest for request in requests])
            for request, level in zip(requests, levels, strict=True):
                request.level = level
                request.droppable = droppable and level == self.depth.overload

    @property
    def keeps(self) -> bool:
        """Whether requests may start, at the level chosen last, only if they are to be answered."""
        return self.depth is not None and not self.depth.may_drop

    def drop(self, level: int) -> None:
        """Note that a request was dropped that had started at this level of the operating curve."""
        if self.depth is not None:
            self.depth.drop(level)

    def observe_exits(self, stage: int, reached: Iterable[Request], left: Iterable[Request]) -> None:
        """Note which requests that ran a stage the learned cache behind it has answered (`Estimate.observe_exits`)."""
        reached_by_level, left_by_level = Counter([one.level for one in reached]), Counter([one.level for one in left])
        for level in {*reached_by_level, *left_by_level}:
            known = self.estimate.level if level == NO_LEVEL else level
            self.estimate.observe_exits(stage, reached_by_level[level], left_by_level[level], known)

    @property
    def _level_works(self) -> list[float]:
        """The seconds of a worker that a usual request takes, by level; cached while costs and lengths stay alike."""
        usual, within, estimate = self.usual, self._within, self.estimate
        of = self.changes, usual, within
        if self._works_of != of:
            self._works_of, self._works = of, []
            for level in range(self.levels):
                estimate.at_level(level)
                self._works.append(estimate.work(self._limit, usual, within))
            if self.overload is not None:
                estimate.at_level(self.levels)
                behind = estimate.first_exit + 1
                begun = estimate.work(self._limit, usual, within, behind)
                rest = estimate.work(self._limit, usual, within) - begun
                self._misses = Misses(self.overload.dropped, estimate.alive[behind], begun, rest)
        return self._works

    # What a new request has to expect ---------------------------------------------------------------------------------

    def update_work(self, limit: int) -> None:
        """Recompute the work of each request, in batches of `limit`, because costs have moved noticeably."""
        self.changes, self._limit = self.estimate.changes, limit
        if self.estimate.by_length:
            seconds = self.work(self.usual)
        elif self._counts_exits:
            seconds = self.estimate.work(limit)
        else:
            inputs = 1 if self.estimate.decoder is None else round(self._inputs)
            seconds = self.estimate.whole(limit, inputs, self.estimate.mean_outputs) / limit
        self.seconds_per_request = seconds  # of new requests; those that wait keep theirs, because they start soon

    def classed(self, inputs: int) -> int:
        """Return the length class of such an input, or its number of steps if these count."""
        return length_class(inputs) if self.estimate.by_length else inputs

    @property
    def usual(self) -> int:
        """The length class of a usual request, 1 if lengths do not count."""
        return self.classed(max(1, round(self._inputs))) if self.estimate.by_length else 1

    @property
    def _within(self) -> float:
        """The seconds that a batch may take if its requests first wait for another one, rounded to powers of 2."""
        return inf if self.allowed == inf else ldexp(0.5, frexp(self.allowed)[1])

    def work(self, inputs: int) -> float:
        """Return the average work of a request of this length."""
        if not self.estimate.by_length:
            return self.seconds_per_request
        return self.works[self.classed(inputs)]

    @property
    def works(self) -> Works:
        """The average work of a request by its length class."""
        return self.estimate.works(self._limit, self._within)

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
        return self.estimate.least(self.classed(inputs), self._counts_exits)

    def outlook(self, wait: float) -> Outlook:
        """Return what a request can expect that runs alone after waiting `wait` seconds."""
        if self.estimate.decoder is not None:
            return Outlook(wait, (self.estimate.whole(1, 1, self.estimate.mean_outputs),), (1.0,))
        ends, chances = self.estimate.ends(self.usual)
        return Outlook(wait, ends, chances, self.keeps)

    def outlooks(self, wait: float, now: float) -> dict[str, Outlook]:
        """Return outlooks by the name of the model and of each level: at the load's choice if that is lower."""
        if self.depth is None:
            return {self.name: self.outlook(wait)}
        self.choose_level(now)
        found = dict[str, Outlook]()
        for level, name in enumerate(self._level_names):
            self.estimate.at_level(self.depth.own(level))
            found[name] = self.outlook(wait)
        self.depth.estimate_lowest()
        return found | {self.name: self.outlook(wait)}
