"""Hardware on which things take what they were seen to take, in the order in which they were seen. Seeded.

A slow moment of a machine lasts for many launches, and a pause delays all messages that it meets. So what was seen is
played again in pieces of neighbours (the stationary bootstrap of Politis and Romano, 1994), never one by one.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from latebind.domain.costs import Curve
from latebind.simulation.agenda import Agenda, Call
from latebind.simulation.hardware import After, Work

PIECE = 50  # neighbours that are played again together, on average


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a stage: `seconds` from the decision to the news of its end, decisions of that moment included."""

    model: str
    stage: int
    rows: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Hops:
    """Seconds on the way between clients and scheduler, in the order in which they were seen.

    There, where no worker ran (`idle`) or one did (`busy`), and `back` for the first answer of a batch; each further
    one takes `each` longer than that before it.
    """

    idle: tuple[float, ...] = ()
    busy: tuple[float, ...] = ()
    back: tuple[float, ...] = ()
    each: float = 0.0


@dataclass(frozen=True, slots=True)
class Loading:
    """One load of so many pieces of a model that took `seconds`."""

    model: str
    pieces: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Seen:
    """What was measured, each kind in the order of time."""

    launches: tuple[Launch, ...] = ()
    hops: Hops = Hops()
    loads: tuple[Loading, ...] = ()


class Series:
    """Values in pieces of neighbours; 0 for ever where there are none."""

    def __init__(self, values: Sequence[float], random: Random) -> None:
        self._values = values or (0.0,)
        self._random = random
        self._place = random.randrange(len(self._values))

    def take(self) -> float:
        """Return the next."""
        at, jumps = self._place, self._random.random() * PIECE < 1.0
        self._place = self._random.randrange(len(self._values)) if jumps else (at + 1) % len(self._values)
        return self._values[at]


class Launches:
    """How long runs take: as the next launch of the same stage, with about as many rows, in what is played again."""

    def __init__(self, seen: Sequence[Launch], random: Random) -> None:
        self._seen = seen
        self._random = random
        self._curves = typical(seen)
        self._places: dict[tuple[str, int], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for place, one in enumerate(seen):
            self._places[one.model, one.stage][one.rows.bit_length()].append(place)
        self._place = random.randrange(max(1, len(seen)))

    def seconds(self, work: Work) -> float:
        """Return what a run takes; where nothing was seen of a stage, what its costs say."""
        sizes = self._places.get((work.model, work.stage))
        if sizes is None:
            return work.seconds
        wanted = work.rows.bit_length()
        places = sizes[min(sizes, key=lambda size: (abs(size - wanted), size))]
        if self._random.random() * PIECE < 1.0:
            self._place = self._random.randrange(len(self._seen))
        found = bisect_left(places, self._place)
        self._place = 1 + places[found if found < len(places) else 0]
        one, curve = self._seen[self._place - 1], self._curves[work.model, work.stage]
        return one.seconds * curve.at(work.rows) / curve.at(one.rows)


def typical(seen: Iterable[Launch]) -> Mapping[tuple[str, int], Curve]:
    """Return what launches of each stage of each model take as a rule, by rows: never less for more of them."""
    every: dict[tuple[str, int], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in seen:
        every[one.model, one.stage][one.rows].append(one.seconds)
    return {stage: _rising(sizes) for stage, sizes in every.items()}


def _rising(sizes: Mapping[int, Sequence[float]]) -> Curve:
    """Fit by the least squares of medians, each counted as often as it was seen (pool adjacent violators)."""
    groups: list[tuple[list[int], float, float]] = []  # batches, how many launches, the sum of their medians
    for rows in sorted(sizes):
        group = [rows], float(len(sizes[rows])), len(sizes[rows]) * median(sizes[rows])
        while groups and groups[-1][2] / groups[-1][1] >= group[2] / group[1]:
            before = groups.pop()
            group = before[0] + group[0], before[1] + group[1], before[2] + group[2]
        groups.append(group)
    points = [(rows, total / count) for batches, count, total in groups for rows in batches]
    return Curve(tuple(rows for rows, _ in points), tuple(seconds for _, seconds in points))


class Measured:
    """Workers whose runs take what launches were seen to take, times `pace`; requests and answers are on their way.

    Messages in one direction do not overtake each other. Loads take what those of the same pieces took.
    """

    def __init__(self, agenda: Agenda, *, seen: Seen, random: Random, pace: float = 1.0) -> None:
        self._agenda = agenda
        self._pace = pace
        self._launches = Launches(seen.launches, random)
        self._idle, self._busy, self._back = (
            Series(values, random) for values in (seen.hops.idle, seen.hops.busy, seen.hops.back)
        )
        self._each = seen.hops.each
        self._loads = _by_pieces(seen.loads, random)
        self._running = 0
        self._heard = self._answered = self._replied = 0.0  # when the last request and answer were through, and sent

    def bring(self, model: str, rows: int, now: float, ready: Call) -> None:
        """A request is on its way for longer where the worker has the core."""
        hop = (self._busy if self._running else self._idle).take()
        self._heard = max(self._heard, now + hop)
        self._agenda.at(self._heard, ready)

    def run(self, work: Work, now: float, after: After) -> None:
        """A run takes what one like it took."""
        ended = now + self._pace * self._launches.seconds(work)
        self._running += 1
        self._agenda.at(ended, self._end)
        for later, call in after:
            self._agenda.at(ended + later, call)

    def send(self, model: str, now: float, sent: Call) -> None:
        """The answers of a batch go together, and clients take them one after another."""
        if now == self._replied:
            self._answered += self._each
        else:
            self._replied, self._answered = now, max(self._answered, now + self._back.take())
        self._agenda.at(self._answered, sent)

    def loading(self, model: str, pieces: tuple[int, ...], seconds: float) -> float:
        """Return what a load takes; where none like it was seen, what is given."""
        series = self._loads.get((model, pieces))
        return seconds if series is None else series.take()

    def _end(self, now: float) -> None:
        del now
        self._running -= 1


def _by_pieces(loads: Iterable[Loading], random: Random) -> dict[tuple[str, tuple[int, ...]], Series]:
    found: dict[tuple[str, tuple[int, ...]], list[float]] = defaultdict(list)
    for one in loads:
        found[one.model, one.pieces].append(one.seconds)
    return {pieces: Series(seconds, random) for pieces, seconds in found.items()}
