"""Which requests of different lengths run together: those of models with named dimensions. Pure.

A batch takes T(b, l) for b rows that are padded to the longest, of length l; if rows are packed, l is their mean. Over
requests sorted by length, a contiguous padded batch is never worse: for the same number of rows and the same longest
one, it takes the same time with any shorter rows. Which goes first is decided as on a machine that runs one job after
another: the shortest first, which minimizes the sum of all latencies, until that would make a request late that can be
in time.

What else was tried, simulated on costs of MiniLM and lengths of CLINC150 and of a long tail: an urgent one first
without checking whether there is time for it beside all that is shorter has 7 to 14 % fewer answers in time at 140 % of
the capacity; never an urgent one first, 1 % fewer at half of it.
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple

from latebind.batching.requests import LAST, Group, Groups, Lane, Request, Turn
from latebind.batching.workers import SubBatch, Worker
from latebind.domain.costs import batch_length, length_class

BELIEVED = 0.9  # the largest share of its time that a worker is assumed to be busy
MORE = 4.0  # times as many as are known are delayed by lost time; 1 has 0.8 % fewer in time at half the capacity
LOOK = 8  # requests are looked at, in the order of their turns, for one that would be late
FAILED = 3  # sizes that do not pay, one after another, until no larger one is tried
SHORTEST = 16  # groups, of which only one can run, are compared
PATIENT = 20.0  # times what it takes alone, a request may be passed over by shorter ones
FREE = 0.8  # of the time until deadlines, taken by what is shorter: beyond, the longest are not worth saving


class Picked(NamedTuple):
    """Requests that run together: their `turns`, `length` (`batch_length`) and the `seconds` until one may leave.

    All are in time if they start by `latest`.
    """

    turns: Sequence[Turn]
    length: int
    seconds: float
    latest: float

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the requests."""
        return tuple([number for _, _, number in self.turns])


class Pool:
    """Requests of one model before `stage` that may run together, at most `most`; `turns` are those of all, ascending.

    Each second in which a worker gets nothing done delays `delayed` requests.
    """

    def __init__(
        self,
        lane: Lane,
        stage: int,
        requests: Mapping[int, Request],
        groups: Groups,
        turns: Sequence[Turn],
        most: int,
        delayed: float,
    ) -> None:
        self.lane = lane
        self.stage = stage
        self._requests = requests
        self._groups = groups
        self._turns = turns
        self._most = most
        self._delayed = delayed
        self._seconds = lane.estimate.exits_at(stage)

    @classmethod
    def waiting(cls, view: Worker, lane: Lane, most: int, now: float) -> "Pool":
        """Return the requests that wait to start; there must be one."""
        queue = lane.queue
        groups = queue.groups or Groups.of_one(lane.spec, queue.shortest, queue.turns)
        return cls(lane, 0, queue, groups, queue.turns, most, _delayed(view, lane, now))

    @classmethod
    def resting(cls, view: Worker, entry: SubBatch, now: float) -> "Pool":
        """Return the requests that rest at a stage."""
        lane, (groups, turns) = view.model_of(entry), entry.groups()
        most = min(lane.most, view.granularity)
        return cls(lane, entry.stage, entry.members, groups, turns, most, _delayed(view, lane, now))

    def shortest(self, now: float) -> Picked:
        """Return the batch that goes first if all are in time.

        If only equal sizes share a batch, it is that of the group with the most answers a second.
        """
        groups = self._groups.ascending
        if not self.lane.spec.one_size:
            return self._grown(groups, now)
        found = [self._grown([group], now) for group in groups[:SHORTEST]]
        return max(found, key=lambda one: len(one.turns) / one.seconds if one.seconds else inf)

    def length(self, turn: Turn) -> int:
        """Return the length of a request."""
        return self._requests[turn[2]].length

    def late_alone(self, now: float) -> tuple[int, ...]:
        """Return the requests that would be late at the end of the network even alone."""
        whole = self.lane.estimate.whole
        return tuple([one.id for one in self._requests.values() if one.deadline < now + whole(1, one.length)])

    def saved(self, picked: Picked, own: bool, now: float) -> Picked | None:
        """Return the batch that has to run before the one `picked`, if one has to and the picked one stays in time.

        `own` is whether that was picked here. No request is saved at the cost of as many shorter ones, unless it has a
        priority, or has been passed over for too long.
        """
        latest, number, due = self._urgent(picked.turns if own else (), now)
        if latest >= now + picked.seconds:
            return None
        request = self._requests[number]
        prior, first, others = request.turn[0] < LAST, self._groups.of(request), list[Group]()
        least = now + self._seconds[1, request.length]
        if not prior and (least > picked.latest or (due and not self._is_worth(request.length, now))):
            return None
        if not self.lane.spec.one_size:
            others = self._groups.ascending[: self._groups.ascending.index(first)][::-1]
        turns = [request.turn, *[turn for turn in first.turns[: self._most] if turn != request.turn]]
        found = self._grown(others, now, turns, first.length)
        return found if prior or now + found.seconds <= picked.latest else None

    def _urgent(self, chosen: Sequence[Turn], now: float) -> tuple[float, int, bool]:
        """Return until when something else may run, which request has to run then, and whether for a deadline.

        That is the latest time at which all still are in time, run one after another by their turns, or the first at
        which one has been passed over for too long. Those that are `chosen` do not count.
        """
        requests, first, least, urgent, before, due = self._requests, -1, inf, -1, 0.0, True
        seconds, works, gone = self._seconds, self.lane.works, {turn[2] for turn in chosen}
        for rank, _, number in self._turns[:LOOK]:
            if number in gone:
                continue
            request = requests[number]
            alone = seconds[1, request.length]
            if first < 0:
                first = number
                if rank < LAST:
                    return now, number, True
            latest = request.deadline - alone - before
            if now <= latest < least:
                least, urgent, due = latest, first, True
            passed = request.arrived + PATIENT * alone
            if passed < least:
                least, urgent, due = passed, number, False
            before += works[request.length]
        return least, urgent, due

    def _is_worth(self, longest: int, now: float) -> bool:
        """Return whether there is time for requests of this length beside all that are shorter, here or to come."""
        lane, works, left = self.lane, self.lane.works, FREE * self.lane.allowed
        for group in self._groups.ascending:  # a few of many are enough to know
            if group.length >= longest:
                break
            left -= len(group.turns) * works[group.length]
            if left < 0.0:
                return False
        coming = sum([count * works[length] for length, count in lane.mix.items() if length < longest])
        return lane.expected(now) * coming <= left

    def _grown(self, groups: Sequence[Group], now: float, first: Sequence[Turn] = (), length: int = 0) -> Picked:
        """Return the first ones of `groups`, after those that are `first` with this length, as many as pay.

        Those that join delay the others of the batch, and by running with them save a batch of their own, which would
        delay all that are not in this one. If some would be late in it, the size with the most answers in time a second
        is taken, without those that are late.
        """
        seconds_of, delayed, failed = self._seconds, self._delayed, 0
        size, least, grown, packs = 0, 0.0, list[tuple[int, int, float]](), self.lane.spec.packs
        for rows, longest, total in _sizes(groups, self._most, len(first), length):
            each = length_class(-(-total // rows)) if packs else longest
            seconds = seconds_of[rows, each]
            if not size or (seconds - least) * delayed < seconds_of[rows - size, longest] * (delayed - size):
                grown.append((rows, each, seconds))
                size, least, failed = rows, seconds, 0
            else:
                failed += 1
                if failed == FAILED:
                    break
        turns = [*first[:size]]
        for group in groups:
            if len(turns) == size:
                break
            turns += group.turns[: size - len(turns)]
        return self._in_time(turns, grown, now, with_first=bool(first))

    def _in_time(
        self, turns: Sequence[Turn], grown: Sequence[tuple[int, int, float]], now: float, *, with_first: bool
    ) -> Picked:
        """Return the batch, of the sizes in `grown`, with the most requests in time a second, without the late ones.

        With `with_first`, only sizes in which the very first one is in time count.
        """
        best, found, place = 0.0, None, 0 if with_first else -1  # of the longest, because groups ascend in length
        requests, packs = self._requests, self.lane.spec.packs
        every = [due for _, due, _ in turns]
        for rows, length, seconds in reversed(grown):
            if rows <= best * seconds:  # fewer would be in time even if all were
                continue
            dues, ends = every[:rows], now + seconds
            due = min(dues)
            if with_first and dues[0] < ends:
                continue
            if due >= ends:
                return Picked(turns[:rows], length, seconds, due - seconds)
            kept = [turn for turn, one in zip(turns, dues, strict=False) if one >= ends]
            if kept:
                own = requests[kept[place][2]].length
                if packs:
                    own = length_class(batch_length([requests[number].length for _, _, number in kept], packs))
                least = self._seconds[len(kept), own]
                if len(kept) > best * least:
                    best, found = len(kept) / least if least else inf, (kept, own, least)
        if found is None:  # all are late
            return Picked(turns[:1], *grown[0][1:], now)
        kept, length, least = found
        return Picked(kept, length, least, min([due for _, due, _ in kept]) - least)


def _sizes(groups: Sequence[Group], most: int, rows: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Yield the numbers of rows that are compared, 1, 2, 4, ... and whole groups, the longest length, the sum of all.

    There are `rows` already, of this `length`.
    """
    size, done, total = 1, 0, 0
    if rows:
        done = min(most, rows)
        while size < done:
            yield size, length, size * length
            size *= 2
        total = done * length
        yield done, length, total
    for group in groups:
        if done == most:
            return
        each, longest, end = group.length, max(length, group.length), min(most, done + len(group.turns))
        while size < end:
            if size > done:
                yield size, longest, total + (size - done) * each
            size *= 2
        total += (end - done) * each
        yield end, longest, total
        done = end


def _delayed(view: Worker, lane: Lane, now: float) -> float:
    """Return how many requests are delayed by a second in which nothing gets done: those here, and those to come.

    Behind W seconds of work, with a share rho of its time for those that come at a rate r, a worker is busy for
    W / (1 - rho) more.
    """
    models, each = view.models, lane.seconds_per_request
    here = models.requests + view.resting
    if each <= 0.0:
        return MORE * here
    coming = min(lane.queue.rate(now), BELIEVED / each)
    return MORE * (here + coming * models.backlog.total / (1.0 - coming * each))
