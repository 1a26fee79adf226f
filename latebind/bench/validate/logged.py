"""What an engine's event log tells of a stretch of time: how long launches, loads and the ways of messages took."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TypeVar

from latebind.bench.validate.client import Sent
from latebind.domain.actions import Load, Outcome, Reply, Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import Entry, read_log
from latebind.domain.events import Arrived, Loaded, StageDone
from latebind.simulation.measured import Launch, Loading, Seen, Timed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Heard:
    """A request as the scheduler heard of it, and when it was answered: the how-manieth of its batch; inf if it never.

    `busy` says whether a worker ran.
    """

    at: float
    busy: bool
    answered: float
    place: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A log, in the order of time, by the clock of the machine."""

    config: SchedulerConfig
    launches: tuple[Timed[Launch], ...]
    loads: tuple[Timed[Loading], ...]
    heard: tuple[Heard, ...]

    @classmethod
    def read(cls, file: Path) -> "Logged":
        """Read what an engine has written that has ended since. Raises `ConfigError`."""
        with file.open("rb") as opened:
            config, entries = read_log(opened)
            reader = _Reader(config)
            for entry in entries:
                reader.take(entry)
        heard = [
            Heard(at, busy, *reader.answered.get(request, (inf, 0))) for request, (at, busy) in reader.heard.items()
        ]
        return cls(config, tuple(reader.launches), tuple(reader.loads), tuple(heard))

    def seen(self, sent: Sequence[Sent]) -> Seen:
        """Return what was seen while these requests were under way and no others."""
        begun, ended = sent[0].sent, max(one.ended for one in sent)

        def within(every: Sequence[Timed[T]]) -> tuple[Timed[T], ...]:
            first = bisect_left(every, begun, key=itemgetter(0))
            return tuple([(at - begun, one) for at, one in every[first : bisect_left(every, ended, key=itemgetter(0))]])

        beside = self.beside(sent)
        there = [(one.sent - begun, heard.at - one.sent, heard.busy) for one, heard in beside]
        back = [(heard, one.ended - heard.answered) for one, heard in beside if heard.answered < inf]
        firsts = {heard.answered: seconds for heard, seconds in back if not heard.place}
        later = [
            (seconds - firsts[heard.answered]) / heard.place
            for heard, seconds in back
            if heard.place and heard.answered in firsts
        ]
        return Seen(
            ended - begun,
            within(self.launches),
            idle=tuple([(at, seconds) for at, seconds, busy in there if not busy]),
            busy=tuple([(at, seconds) for at, seconds, busy in there if busy]),
            back=tuple([(at - begun, seconds) for at, seconds in sorted(firsts.items())]),
            each=max(0.0, median(later)) if later else 0.0,
            loads=within(self.loads),
        )

    def beside(self, sent: Sequence[Sent]) -> list[tuple[Sent, Heard]]:
        """Return requests as clients and scheduler saw them: messages arrive in the order of sending."""
        first = bisect_left(self.heard, sent[0].sent, key=lambda one: one.at)
        return list(zip(sent, self.heard[first : first + len(sent)], strict=True))


class _Reader:
    """Follows a log."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._footprints = {served.spec.name: served.footprint for served in config.models}
        self.launches: list[Timed[Launch]] = []
        self.loads: list[Timed[Loading]] = []
        self.heard: dict[int, tuple[float, bool]] = {}
        self.answered: dict[int, tuple[float, int]] = {}
        self._running: dict[int, tuple[float, Run]] = {}  # by worker
        self._loading: dict[str, float] = {}  # since when

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        match entry.event:
            case Arrived(requests=requests):
                self.heard |= dict.fromkeys(requests, (entry.now, bool(self._running)))
            case StageDone(worker=worker):
                begun, run = self._running.pop(worker)
                rows = run.rows or len(run.requests)
                self.launches.append((begun, Launch(run.model, run.stage, rows, entry.now - begun)))
            case Loaded(model=model, pieces=pieces):
                begun = self._loading.pop(model)
                size = sum([self._footprints[model].sizes[piece] for piece in pieces])
                self.loads.append((begun, Loading(size, entry.now - begun)))
        place = 0
        for action in entry.actions:
            if isinstance(action, Run):
                self._running[action.worker] = entry.now, action
            elif isinstance(action, Load):
                self._loading[action.model] = entry.now
            elif isinstance(action, Reply) and action.outcome is Outcome.ANSWERED:
                self.answered[action.request] = entry.now, place
                place += 1
