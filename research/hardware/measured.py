"""Simulated hardware whose runs, messages and loads take what they took in a recording of an engine. Seeded.

A slow moment of a machine lasts for many launches, and a pause delays all messages that it meets. So a recording is
replayed in its order, from a random place. A message takes what one took at that moment of the recording: if each were
drawn independently, a single pause would be drawn again for each message of a burst. A run takes what the next recorded
run of its kind took, each of them once: by the moment, one run would be repeated wherever the recording has a gap.

Batches grow past those of the recording where a simulated queue is longer for a moment. The seconds of such batches
follow from the model's costs and from the largest recorded batches that were seen often enough. If two or three
launches counted, of which one met a pause, larger batches would take ten times too long, and the queue would grow
without end.
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
from latebind.simulation.hardware import After, Agenda, Call, Work

WINDOW = 0.2  # seconds of a recording after which runs are aligned with the current moment again
AT_ONCE = 0.00015  # seconds; calls that an engine reads together follow each other as quickly, later reads rarely do
OFTEN = 5  # launches; of fewer, one that meets a pause could decide what all take
REST = 0.001  # seconds without a run: 1 ms costs 4 % of the first stage of a small network, 8 ms 14 %

T = TypeVar("T")
Timed = tuple[float, T]  # seconds since the recording began, and what happened
Stage = tuple[str, int]  # of a model
Kind = tuple[str, int, bool]  # a stage, and whether the run was fresh


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a stage: `seconds` from the decision until its end was reported, other decisions meanwhile included.

    By its costs it takes `profiled` seconds with inputs of typical length, and `longer` times as many with its own.
    `fresh`: the first run of its stage since the worker rested (`Rests`).
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
        """The seconds that it would have taken with inputs of typical length."""
        return self.seconds / self.longer

    @property
    def kind(self) -> "Kind":
        """Runs of the same kind take about as long per row."""
        return self.model, self.stage, self.fresh


@dataclass(frozen=True, slots=True)
class Loading:
    """One load of `size` bytes: `seconds` from the decision until its end was reported."""

    size: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Hop:
    """A message that took `seconds`, and arrived `beyond` seconds after the end of the run during which it was sent.

    The receiver may have to wait for the core until a run is over. A pause is then part of the run, and must not be
    counted twice.
    """

    seconds: float
    beyond: float = 0.0


@dataclass(frozen=True, slots=True)
class Seen:
    """A recording of `length` seconds, each kind in the order of time.

    Messages from clients to the scheduler are `idle` or `busy`, depending on whether a worker ran when they were sent.
    `back` are the first answers of batches; each further answer took `each` seconds longer than the one before it.
    """

    length: float
    launches: tuple[Timed[Launch], ...] = ()
    idle: tuple[Timed[Hop], ...] = ()
    busy: tuple[Timed[Hop], ...] = ()
    back: tuple[Timed[Hop], ...] = ()
    each: float = 0.0
    loads: tuple[Timed[Loading], ...] = ()


def joined(some: Sequence[Seen]) -> Seen:
    """Return recordings, one after another, as a single one."""
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
    """How many times as long as usual runs and loads take; processors and disks slow down independently."""

    runs: float = 1.0
    loads: float = 1.0


USUAL = Pace()


def at_pace(seen: Seen, pace: Pace) -> Seen:
    """Return the recording with launches and loads corrected for a machine that was `pace` times slower than usual."""
    launches = [(at, replace(one, seconds=one.seconds / pace.runs)) for at, one in seen.launches]
    loads = [(at, replace(one, seconds=one.seconds / pace.loads)) for at, one in seen.loads]
    return replace(seen, launches=tuple(launches), loads=tuple(loads))


class Rests:
    """Tells which runs are fresh: a worker that has rested takes longer for the first run of each stage.

    Where rests are frequent, so are fresh runs, and no request waits behind most of them. Mixed with the others, they
    would make the runs of a queue look longer than they are.
    """

    def __init__(self) -> None:
        self._ended: dict[int, float] = {}  # the last run of each worker
        self._since: dict[int, set[Stage]] = {}  # the stages that each worker has run since it rested

    def begins(self, worker: int, stage: Stage, now: float) -> bool:
        """Note the start of a run; return whether it is fresh."""
        if now - self._ended.get(worker, -inf) >= REST:
            self._since[worker] = set()
        fresh = stage not in self._since[worker]
        self._since[worker].add(stage)
        return fresh

    def ends(self, worker: int, now: float) -> None:
        """Note the end of a worker's run."""
        self._ended[worker] = now


class Moments:
    """Maps simulated time to moments of a recording: from a random one on, and round from the end to the start."""

    def __init__(self, length: float, random: Random) -> None:
        self._length = length
        self._offset = random.uniform(0.0, length)

    def at(self, now: float) -> float:
        """Return the moment, in seconds since the recording began."""
        return (now + self._offset) % self._length

    def window(self, now: float) -> int:
        """Return a number that changes with every window."""
        return int((now + self._offset) / WINDOW)


class Messages:
    """Recorded messages of one direction, by the time they were sent; without any, messages take no time."""

    def __init__(self, seen: Sequence[Timed[Hop]]) -> None:
        self._times = [at for at, _ in seen] or [0.0]
        self._seen = [hop for _, hop in seen] or [Hop(0.0)]

    def at(self, moment: float) -> Hop:
        """Return what a message takes that is sent at `moment`: as the nearest, without overtaking its neighbours."""
        right = min(bisect_left(self._times, moment), len(self._times) - 1)
        left = max(0, right - 1)
        before, after = self._times[left] - moment, self._times[right] - moment
        hop = self._seen[left if -before < after else right]
        if before <= 0.0 < after:
            earliest, latest = before + self._seen[left].seconds, after + self._seen[right].seconds
            if not earliest <= hop.seconds <= latest:
                return Hop(min(max(hop.seconds, earliest), latest), hop.beyond)
        return hop


class Replay(Generic[T]):
    """Recorded things of one kind, taken one after another, and aligned with the moment in each new window."""

    def __init__(self, seen: Sequence[Timed[T]]) -> None:
        self._times = [at for at, _ in seen]
        self._seen = [one for _, one in seen]
        self._window = -1
        self._place = 0

    def take(self, moments: Moments, now: float) -> T:
        """Return the next one; in a new window, the first at or after the moment. After the last comes the first."""
        window = moments.window(now)
        if window != self._window:
            self._window, self._place = window, bisect_left(self._times, moments.at(now))
        found = self._place % len(self._seen)
        self._place = found + 1
        return self._seen[found]


class Launches:
    """How long runs take: as recorded launches of the same stage with about as many rows, equally fresh."""

    def __init__(self, seen: Sequence[Timed[Launch]]) -> None:
        self._usual = typical([one for _, one in seen])
        kinds: dict[Kind, list[Timed[Launch]]] = defaultdict(list)
        for at, one in seen:
            kinds[one.kind].append((at, one))
        self._kinds = {kind: _alike(some) for kind, some in kinds.items()}

    def seconds(self, work: Work, fresh: bool, moments: Moments, now: float) -> float:
        """Return the seconds of a run; those of its costs where no launch of the stage was recorded."""
        kind = work.model, work.stage, fresh
        if kind not in self._kinds:
            kind = work.model, work.stage, not fresh
        if kind not in self._kinds:
            return work.seconds
        sizes, wanted, usual = self._kinds[kind], work.rows.bit_length(), self._usual[kind]
        one = sizes[min(sizes, key=lambda size: (abs(size - wanted), size))].take(moments, now)
        would, did = usual.at(work.rows, work.seconds / work.longer), usual.at(one.rows, one.profiled)
        return work.longer * one.typical * would / did


def _alike(seen: Sequence[Timed[Launch]]) -> dict[int, Replay[Launch]]:
    """Return launches by the bit length of their rows; sizes with few launches are merged with the next smaller."""
    by_size: dict[int, list[Timed[Launch]]] = defaultdict(list)
    for at, one in seen:
        by_size[one.rows.bit_length()].append((at, one))
    found, few = dict[int, Replay[Launch]](), list[Timed[Launch]]()
    for size in sorted(by_size, reverse=True):
        few += by_size[size]
        if len(few) >= OFTEN or size == min(by_size):
            found[size] = Replay(sorted(few, key=itemgetter(0)))
            few = []
    return found


@dataclass(frozen=True, slots=True)
class Usual:
    """The typical seconds of launches of a kind by rows, for inputs of typical length; they never fall.

    Between the ends of `curve` they were recorded. `profiled` are the seconds of these ends by the model's costs; sizes
    beyond an end take the seconds of that end times the ratio of their costs.
    """

    curve: Curve
    profiled: tuple[float, float]

    def at(self, rows: int, profiled: float) -> float:
        """Return the seconds of a launch of `rows` rows, which by its costs takes `profiled` seconds."""
        first, last = self.curve.batches[0], self.curve.batches[-1]
        if first <= rows <= last:
            return self.curve.at(rows)
        nearest, costs = (first, self.profiled[0]) if rows < first else (last, self.profiled[1])
        return self.curve.at(nearest) * (profiled / costs if costs > 0.0 else 1.0)


def typical(seen: Iterable[Launch]) -> Mapping[Kind, Usual]:
    """Return the typical seconds of each kind of launch, from sizes with enough launches at least as large."""
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
    """Return the medians by size as a curve that does not fall (pool adjacent violators, weighted by launches)."""
    groups: list[tuple[list[int], float, float]] = []  # batch sizes, number of launches, weighted sum of medians
    for rows in sorted(sizes):
        group = [rows], float(len(sizes[rows])), len(sizes[rows]) * median(sizes[rows])
        while groups and groups[-1][2] / groups[-1][1] >= group[2] / group[1]:
            before = groups.pop()
            group = before[0] + group[0], before[1] + group[1], before[2] + group[2]
        groups.append(group)
    points = [(rows, total / count) for batches, count, total in groups for rows in batches]
    return Curve(tuple([rows for rows, _ in points]), tuple([seconds for _, seconds in points]))


class Measured:
    """Workers, messages and loads that take what was recorded; runs and loads times the `pace` when they start.

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
        self._loads = {size: Replay(some) for size, some in loads.items()}
        self._ends: dict[int, float] = {}  # by worker, when its current run ends
        self._rests = Rests()
        self._coming: deque[tuple[float, str]] = deque()  # calls under way: when each arrives, and its model
        # When the last request arrived, when the last answer arrived, and when it was sent.
        self._heard = self._answered = self._replied = 0.0

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """A request takes longer while a worker has the core, but arrives soon after the run at the latest."""
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
        """Calls that arrive almost at the same time have been read together."""
        _, model = self._coming.popleft()
        return bool(self._coming) and self._coming[0][0] - now <= AT_ONCE and self._coming[0][1] == model

    def run(self, work: Work, now: float, after: After) -> None:
        """A run takes what a similar recorded one took."""
        fresh = self._rests.begins(work.worker, (work.model, work.stage), now)
        ended = now + self._pace(now).runs * self._launches.seconds(work, fresh, self._moments, now)
        self._ends[work.worker] = ended
        self._agenda.at(ended, partial(self._end, work.worker))
        for later, call in after:
            self._agenda.at(ended + later, call)

    def send(self, model: str, now: float, sent: Call) -> None:
        """The answers of a batch are sent together, and clients take them one after another."""
        if now == self._replied:
            self._answered += self._each
        else:
            self._replied = now
            self._answered = max(self._answered, now + self._back.at(self._moments.at(now)).seconds)
        self._agenda.at(self._answered, sent)

    def load(self, size: int, seconds: float, now: float) -> float:
        """A load takes as long per byte as the next recorded one of about the same size."""
        wanted = size.bit_length()
        nearest = min(self._loads, key=lambda one: (abs(one - wanted), one), default=None)
        if nearest is None:
            return seconds
        one = self._loads[nearest].take(self._moments, now)
        return self._pace(now).loads * one.seconds * size / one.size

    def _end(self, worker: int, now: float) -> None:
        del self._ends[worker]
        self._rests.ends(worker, now)
