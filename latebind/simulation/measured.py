"""Hardware on which things take what they were seen to take at a moment that was recorded. Seeded.

A slow moment of a machine lasts for many launches, and a pause delays all messages that it meets. So a record is played
again as it was, from a place that is drawn. A message takes what one took at that moment: drawn one by one, a single
pause would come again with each message of a burst. A run takes what the next of its kind took, and each counts once:
where the record has a gap, one would come again and again.

Batches grow past those of the record where a simulated queue is longer for a moment. What these take is known by the
model's costs and what the largest ones took that were seen often enough: by two or three launches, of which one met a
pause, larger ones would take ten times as long as they do, the queue would grow by that, and so on without end.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from operator import itemgetter
from random import Random
from statistics import median
from typing import Generic, TypeVar

from latebind.domain.costs import Curve
from latebind.simulation.agenda import Agenda, Call
from latebind.simulation.hardware import After, Work

WINDOW = 0.2  # seconds of a record, after which runs begin anew with those of the moment
AT_ONCE = 0.00015  # seconds: what an engine reads at once it tells so quickly, what it reads again rarely comes so soon
OFTEN = 5  # launches, of which one that meets a pause does not say what all take
REST = 0.001  # seconds without a run: 1 ms costs 4 % of the first stage of a small network, 8 ms 14 %

T = TypeVar("T")
Timed = tuple[float, T]  # what happened, and when: seconds since the record began
Stage = tuple[str, int]  # of a model
Kind = tuple[str, int, bool]  # a stage, and whether the run was fresh


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a stage: `seconds` from the decision to the news of its end, decisions of that moment included.

    By its costs it takes `profiled` seconds with inputs of typical length, and `longer` times as long with its own.
    `fresh`: the first of its stage since the worker rested (`Rests`).
    """

    model: str
    stage: int
    rows: int
    seconds: float
    profiled: float
    fresh: bool = False
    longer: float = 1.0

    @property
    def typical(self) -> float:
        """What it would have taken with inputs of typical length."""
        return self.seconds / self.longer

    @property
    def kind(self) -> "Kind":
        """What runs are compared by that take about as long for a row."""
        return self.model, self.stage, self.fresh


@dataclass(frozen=True, slots=True)
class Loading:
    """One load of so many bytes: `seconds` from the decision to the news of its end."""

    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Hop:
    """A message took `seconds`, and came `beyond` that many after the end of the run during which it was sent.

    Who listens may wait for the core until a run is over. A pause is in the run then, and not to be counted twice.
    """

    seconds: float
    beyond: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A record of `length` seconds, each kind in the order of time.

    Between clients and scheduler messages took so many seconds: there, sent while no worker ran (`idle`) or one did
    (`busy`), and `back` for the first answer of a batch; each further one took `each` longer than that before it.
    """

    length: float
    launches: tuple[Timed[Launch], ...] = ()
    idle: tuple[Timed[Hop], ...] = ()
    busy: tuple[Timed[Hop], ...] = ()
    back: tuple[Timed[Hop], ...] = ()
    each: float = 0.0
    loads: tuple[Timed[Loading], ...] = ()


def joined(some: Sequence[Seen]) -> Seen:
    """Return records one after another as one."""
    starts = [sum(seen.length for seen in some[:number]) for number in range(len(some))]

    def end_to_end(kind: Callable[[Seen], Sequence[Timed[T]]]) -> tuple[Timed[T], ...]:
        return tuple([(start + at, one) for start, seen in zip(starts, some, strict=True) for at, one in kind(seen)])

    return Seen(
        sum(seen.length for seen in some),
        end_to_end(lambda seen: seen.launches),
        end_to_end(lambda seen: seen.idle),
        end_to_end(lambda seen: seen.busy),
        end_to_end(lambda seen: seen.back),
        median([seen.each for seen in some]),
        end_to_end(lambda seen: seen.loads),
    )


@dataclass(frozen=True, slots=True)
class Pace:
    """How many times as long as usual runs and loads take: processors and disks have phases of their own."""

    runs: float = 1.0
    loads: float = 1.0


USUAL = Pace()


def at_pace(seen: Seen, pace: Pace) -> Seen:
    """Return the record as launches and loads would have been where the machine was not so many times slower."""
    launches = [(at, replace(one, seconds=one.seconds / pace.runs)) for at, one in seen.launches]
    loads = [(at, replace(one, seconds=one.seconds / pace.loads)) for at, one in seen.loads]
    return replace(seen, launches=tuple(launches), loads=tuple(loads))


class Rests:
    """Which runs are fresh: a worker that has rested takes longer for each stage once.

    Where rests are frequent, so are such runs, and nobody waits behind most of them. Mixed with the others, they would
    make runs of a queue look longer than they are.
    """

    def __init__(self) -> None:
        self._ended: dict[int, float] = {}  # the last run of each worker
        self._since: dict[int, set[Stage]] = {}  # that ran since the worker rested

    def begins(self, worker: int, stage: Stage, now: float) -> bool:
        """Tell whether a run that begins is fresh."""
        if now - self._ended.get(worker, -inf) >= REST:
            self._since[worker] = set()
        fresh = stage not in self._since[worker]
        self._since[worker].add(stage)
        return fresh

    def ends(self, worker: int, now: float) -> None:
        """Hear that a worker's run has ended."""
        self._ended[worker] = now


class Moments:
    """Which moment of a record is played at a time: as they were, from any on, and behind the last the first."""

    def __init__(self, length: float, random: Random) -> None:
        self._length = length
        self._offset = random.uniform(0.0, length)

    def at(self, now: float) -> float:
        """Return the moment, in seconds since the record began."""
        return (now + self._offset) % self._length

    def window(self, now: float) -> int:
        """Return a number that changes with every window."""
        return int((now + self._offset) / WINDOW)


class Messages:
    """Messages of one direction, by when they were sent; where there were none, they take no time."""

    def __init__(self, seen: Sequence[Timed[Hop]]) -> None:
        self._times = [at for at, _ in seen] or [0.0]
        self._seen = [hop for _, hop in seen] or [Hop(0.0)]

    def at(self, moment: float) -> Hop:
        """Return what one sent at a moment takes: as the nearest, not before one sent earlier nor after a later one."""
        right = min(bisect_left(self._times, moment), len(self._times) - 1)
        left = max(0, right - 1)
        before, after = self._times[left] - moment, self._times[right] - moment
        hop = self._seen[left if -before < after else right]
        if before <= 0.0 < after:
            earliest, latest = before + self._seen[left].seconds, after + self._seen[right].seconds
            if not earliest <= hop.seconds <= latest:
                return Hop(min(max(hop.seconds, earliest), latest), hop.beyond)
        return hop


class Turns(Generic[T]):
    """Things of one kind, one after another, beginning anew with each window."""

    def __init__(self, seen: Sequence[Timed[T]]) -> None:
        self._times = [at for at, _ in seen]
        self._seen = [one for _, one in seen]
        self._window = -1
        self._place = 0

    def take(self, moments: Moments, now: float) -> T:
        """Return the next; in a new window the first at or after the moment, behind the last the first."""
        window = moments.window(now)
        if window != self._window:
            self._window, self._place = window, bisect_left(self._times, moments.at(now))
        found = self._place % len(self._seen)
        self._place = found + 1
        return self._seen[found]


class Launches:
    """How long runs take: as launches of the same stage with about as many rows, fresh or not."""

    def __init__(self, seen: Sequence[Timed[Launch]]) -> None:
        self._usual = typical([one for _, one in seen])
        kinds: dict[Kind, list[Timed[Launch]]] = defaultdict(list)
        for at, one in seen:
            kinds[one.kind].append((at, one))
        self._kinds = {kind: _alike(some) for kind, some in kinds.items()}

    def seconds(self, work: Work, fresh: bool, moments: Moments, now: float) -> float:
        """Return what a run takes; where nothing was seen of a stage, what its costs say."""
        kind = work.model, work.stage, fresh
        if kind not in self._kinds:
            kind = work.model, work.stage, not fresh
        if kind not in self._kinds:
            return work.seconds
        sizes, wanted, usual = self._kinds[kind], work.rows.bit_length(), self._usual[kind]
        one = sizes[min(sizes, key=lambda size: (abs(size - wanted), size))].take(moments, now)
        would, did = usual.at(work.rows, work.seconds / work.longer), usual.at(one.rows, one.profiled)
        return work.longer * one.typical * would / did


def _alike(seen: Sequence[Timed[Launch]]) -> dict[int, Turns[Launch]]:
    """Return launches by the binary digits of their rows, with smaller ones among them where they alone are few."""
    by_size: dict[int, list[Timed[Launch]]] = defaultdict(list)
    for at, one in seen:
        by_size[one.rows.bit_length()].append((at, one))
    found, few = dict[int, Turns[Launch]](), list[Timed[Launch]]()
    for size in sorted(by_size, reverse=True):
        few += by_size[size]
        if len(few) >= OFTEN or size == min(by_size):
            found[size] = Turns(sorted(few, key=itemgetter(0)))
            few = []
    return found


@dataclass(frozen=True, slots=True)
class Usual:
    """What launches of a kind take as a rule, by rows, with inputs of typical length: never less for more.

    So it was seen between the ends of `curve`, of which the costs say that they take so many seconds (`profiled`).
    Others take as many times longer or shorter than the nearest end as they do by these costs.
    """

    curve: Curve
    profiled: tuple[float, float]

    def at(self, rows: int, profiled: float) -> float:
        """Return the seconds of so many rows, which by their costs take `profiled`."""
        first, last = self.curve.batches[0], self.curve.batches[-1]
        if first <= rows <= last:
            return self.curve.at(rows)
        nearest, costs = (first, self.profiled[0]) if rows < first else (last, self.profiled[1])
        return self.curve.at(nearest) * (profiled / costs if costs > 0.0 else 1.0)


def typical(seen: Iterable[Launch]) -> Mapping[Kind, Usual]:
    """Return what launches of each kind take as a rule, by those sizes of which there are enough so large."""
    every: dict[Kind, list[Launch]] = defaultdict(list)
    for one in seen:
        every[one.kind].append(one)
    return {kind: _usual(some) for kind, some in every.items()}


def _usual(seen: Sequence[Launch]) -> Usual:
    sizes: dict[int, list[float]] = defaultdict(list)
    largest = sorted([one.rows for one in seen], reverse=True)[min(OFTEN, len(seen)) - 1]
    for one in seen:
        if one.rows <= largest:
            sizes[one.rows].append(one.typical)
    costs = {one.rows: one.profiled for one in seen}
    return Usual(_rising(sizes), (costs[min(sizes)], costs[largest]))


def _rising(sizes: Mapping[int, Sequence[float]]) -> Curve:
    """Return medians, those that would fall put together as often as they were seen (pool adjacent violators)."""
    groups: list[tuple[list[int], float, float]] = []  # batches, how many launches, the sum of their medians
    for rows in sorted(sizes):
        group = [rows], float(len(sizes[rows])), len(sizes[rows]) * median(sizes[rows])
        while groups and groups[-1][2] / groups[-1][1] >= group[2] / group[1]:
            before = groups.pop()
            group = before[0] + group[0], before[1] + group[1], before[2] + group[2]
        groups.append(group)
    points = [(rows, total / count) for batches, count, total in groups for rows in batches]
    return Curve(tuple([rows for rows, _ in points]), tuple([seconds for _, seconds in points]))


class Measured:
    """Workers and messages that take what was seen, runs and loads `pace` times as long as that says when they begin.

    Messages in one direction do not overtake each other.
    """

    def __init__(
        self, agenda: Agenda, *, seen: Seen, random: Random, pace: Callable[[float], Pace] = lambda now: USUAL
    ) -> None:
        self._agenda = agenda
        self._pace = pace
        self._moments = Moments(seen.length, random)
        self._launches = Launches(seen.launches)
        self._idle, self._busy, self._back = (Messages(some) for some in (seen.idle, seen.busy, seen.back))
        self._each = seen.each
        loads: dict[int, list[Timed[Loading]]] = defaultdict(list)
        for at, one in seen.loads:
            loads[one.size.bit_length()].append((at, one))
        self._loads = {size: Turns(some) for size, some in loads.items()}
        self._ends: dict[int, float] = {}  # of what runs, by worker
        self._rests = Rests()
        self._coming: deque[tuple[float, str]] = deque()  # calls that are on their way: when they come, and for what
        self._heard = self._answered = self._replied = 0.0  # when the last request and answer were through, and sent

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """A request is on its way for longer where a worker has the core, but hardly for longer than that."""
        moment = self._moments.at(now)
        if self._ends:
            hop = self._busy.at(moment)
            heard = min(now + hop.seconds, min(self._ends.values()) + hop.beyond)
        else:
            heard = now + self._idle.at(moment).seconds
        self._heard = max(self._heard, heard)
        self._coming.append((self._heard, model))
        self._agenda.at(self._heard, ready)

    def more(self, now: float) -> bool:
        """What is heard of at once has been read at once."""
        _, model = self._coming.popleft()
        return bool(self._coming) and self._coming[0][0] - now <= AT_ONCE and self._coming[0][1] == model

    def run(self, work: Work, now: float, after: After) -> None:
        """A run takes what one like it took."""
        fresh = self._rests.begins(work.worker, (work.model, work.stage), now)
        ended = now + self._pace(now).runs * self._launches.seconds(work, fresh, self._moments, now)
        self._ends[work.worker] = ended
        self._agenda.at(ended, partial(self._end, work.worker))
        for later, call in after:
            self._agenda.at(ended + later, call)

    def send(self, model: str, now: float, sent: Call) -> None:
        """The answers of a batch go together, and clients take them one after another."""
        if now == self._replied:
            self._answered += self._each
        else:
            self._replied = now
            self._answered = max(self._answered, now + self._back.at(self._moments.at(now)).seconds)
        self._agenda.at(self._answered, sent)

    def load(self, size: int, seconds: float, now: float) -> float:
        """A load takes for each byte what the next one of about as many took."""
        wanted = size.bit_length()
        nearest = min(self._loads, key=lambda one: (abs(one - wanted), one), default=None)
        if nearest is None:
            return seconds
        one = self._loads[nearest].take(self._moments, now)
        return self._pace(now).loads * one.seconds * size / one.size

    def _end(self, worker: int, now: float) -> None:
        del self._ends[worker]
        self._rests.ends(worker, now)
