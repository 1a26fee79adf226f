"""What an engine's event log tells of a stretch of time: how long launches, loads and the ways of messages took."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import median

from latebind.bench.validate.client import Sent
from latebind.domain.actions import Outcome, Reply, Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import Entry, read_log
from latebind.domain.events import Arrived, Loaded, StageDone
from latebind.simulation.measured import Hops, Launch, Loading, Seen


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
    """A log, in the order of time; `launches` and `loads` with the time of their beginning and end."""

    config: SchedulerConfig
    launches: tuple[tuple[float, Launch], ...]
    loads: tuple[tuple[float, Loading], ...]
    heard: tuple[Heard, ...]

    @classmethod
    def read(cls, file: Path) -> "Logged":
        """Read what an engine has written that has ended since. Raises `ConfigError`."""
        with file.open("rb") as opened:
            config, entries = read_log(opened)
            reader = _Reader()
            for entry in entries:
                reader.take(entry)
        heard = [
            Heard(at, busy, *reader.answered.get(request, (inf, 0))) for request, (at, busy) in reader.heard.items()
        ]
        return cls(config, tuple(reader.launches), tuple(reader.loads), tuple(heard))

    def seen(self, stretches: Sequence[Sequence[Sent]]) -> Seen:
        """Return what was seen while these requests were under way; between stretches the engine had nothing to do."""
        launches, loads, hops = list[Launch](), list[Loading](), list[tuple[Sent, Heard]]()
        for sent in stretches:
            begun, ended = sent[0].sent, max(one.ended for one in sent)
            launches += [one for at, one in self.launches if begun <= at <= ended]
            loads += [one for at, one in self.loads if begun <= at <= ended]
            hops += self.beside(sent)
        return Seen(tuple(launches), _hops(hops), tuple(loads))

    def beside(self, sent: Sequence[Sent]) -> list[tuple[Sent, Heard]]:
        """Return requests as clients and scheduler saw them: messages arrive in the order of sending."""
        first = bisect_left(self.heard, sent[0].sent, key=lambda one: one.at)
        return list(zip(sent, self.heard[first : first + len(sent)], strict=True))


def _hops(seen: Sequence[tuple[Sent, Heard]]) -> Hops:
    there = [(heard.busy, heard.at - sent.sent) for sent, heard in seen]
    back = [(heard, sent.ended - heard.answered) for sent, heard in seen if heard.answered < inf]
    firsts = {heard.answered: seconds for heard, seconds in back if not heard.place}
    later = [
        (seconds - firsts[heard.answered]) / heard.place
        for heard, seconds in back
        if heard.place and heard.answered in firsts
    ]
    return Hops(
        tuple(seconds for busy, seconds in there if not busy),
        tuple(seconds for busy, seconds in there if busy),
        tuple(firsts.values()),
        max(0.0, median(later)) if later else 0.0,
    )


class _Reader:
    """Follows a log."""

    def __init__(self) -> None:
        self.launches: list[tuple[float, Launch]] = []
        self.loads: list[tuple[float, Loading]] = []
        self.heard: dict[int, tuple[float, bool]] = {}
        self.answered: dict[int, tuple[float, int]] = {}
        self._running: dict[int, tuple[float, Run]] = {}  # by worker

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        match entry.event:
            case Arrived(requests=requests):
                self.heard |= dict.fromkeys(requests, (entry.now, bool(self._running)))
            case StageDone(worker=worker):
                begun, run = self._running.pop(worker)
                rows = run.rows or len(run.requests)
                self.launches.append((begun, Launch(run.model, run.stage, rows, entry.now - begun)))
            case Loaded(model=model, pieces=pieces, seconds=seconds):
                self.loads.append((entry.now, Loading(model, pieces, seconds)))
        place = 0
        for action in entry.actions:
            if isinstance(action, Run):
                self._running[action.worker] = entry.now, action
            elif isinstance(action, Reply) and action.outcome is Outcome.ANSWERED:
                self.answered[action.request] = entry.now, place
                place += 1
