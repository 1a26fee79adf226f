"""Reads from an engine's event log what launches, loads and messages took in a stretch of time, and counts them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from math import inf
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import TypeVar

from latebind.compiled import is_compiled
from latebind.domain.actions import Load, Outcome, Reply, Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.errors import ConfigError
from latebind.domain.eventlog import Entry, read_log
from latebind.domain.events import Arrived, Loaded, StageDone
from latebind.domain.metrics import Metrics
from latebind.queries.scheduler import AnyScheduler, make_scheduler
from research.hardware.measured import Hop, Launch, Loading, Rests, Seen, Timed
from research.requests import Sent

T = TypeVar("T")


def check_can_replay() -> None:
    """Raise `ConfigError` where a scheduler cannot be copied as it was, before anything is measured in vain."""
    if is_compiled():
        raise ConfigError(
            "this installation is compiled, and what a compiled scheduler has learned cannot be copied into a "
            "simulation: run this benchmark from an installation in plain Python (without LATEBIND_COMPILE)"
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """So many `launches` of stages, with `rows` in all of them together, and `loads` of models or pieces."""

    launches: float = 0.0
    rows: float = 0.0
    loads: float = 0.0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.launches + other.launches, self.rows + other.rows, self.loads + other.loads)

    @property
    def rows_each(self) -> float:
        """Rows of a launch, 0 where there were none."""
        return self.rows / self.launches if self.launches else 0.0


NOTHING = Counts()


def counted(metrics: Metrics) -> Counts:
    """Return what a simulated engine did."""
    found = metrics.snapshot()
    models = found["models"].values()
    memory = found.get("memory", {"models": {}})["models"].values()
    return Counts(
        sum([model["stage_runs"] for model in models]),
        sum([model["row_stages"] for model in models]),
        sum([model["loads"] for model in memory]),
    )


def average(every: Sequence[Counts]) -> Counts:
    """Return the mean of several runs."""
    whole, runs = sum(every, start=NOTHING), len(every)
    return Counts(whole.launches / runs, whole.rows / runs, whole.loads / runs)


@dataclass(frozen=True, slots=True)
class Heard:
    """When the scheduler heard of a request and when it was answered, inf if it never was; its place in the batch."""

    at: float
    answered: float
    place: int


@dataclass(frozen=True, slots=True)
class Logged:
    """A log, in the order of time, by the clock of the machine; launches and loads by their beginning.

    `entries` is all of it, where the scheduler is to be as it was.
    """

    config: SchedulerConfig
    launches: tuple[Timed[Launch], ...]
    loads: tuple[Timed[Loading], ...]
    heard: tuple[Heard, ...]
    entries: tuple[Entry, ...] = ()

    @classmethod
    def read(cls, file: Path) -> "Logged":
        """Read what an engine has written that has ended since. Raises `ConfigError`."""
        with file.open("rb") as opened:
            config, every = read_log(opened)
            entries = tuple(every)
        reader = _Reader(config)
        for entry in entries:
            reader.take(entry)
        heard = [Heard(at, *reader.answered.get(request, (inf, 0))) for request, at in reader.heard.items()]
        launches = sorted(reader.launches, key=itemgetter(0))
        return cls(config, tuple(launches), tuple(reader.loads), tuple(heard), entries)

    def seen(self, sent: Sequence[Sent]) -> Seen:
        """Return what was seen while these requests were under way and no others."""
        begun, ended = sent[0].sent, max(one.ended for one in sent)

        def within(every: Sequence[Timed[T]]) -> tuple[Timed[T], ...]:
            return tuple([(at - begun, one) for at, one in _between(every, begun, ended)])

        beside = self.beside(sent)
        there = [(one.sent - begun, heard.at - one.sent, self._end_of_run(one.sent), heard) for one, heard in beside]
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
            idle=tuple([(at, Hop(seconds)) for at, seconds, end, _ in there if end is None]),
            busy=tuple([(at, Hop(seconds, max(0.0, heard.at - end))) for at, seconds, end, heard in there if end]),
            back=tuple([(at - begun, Hop(seconds)) for at, seconds in sorted(firsts.items())]),
            each=max(0.0, median(later)) if later else 0.0,
            loads=within(self.loads),
        )

    def schedulers(self, times: Iterable[float]) -> dict[float, AnyScheduler]:
        """Return the scheduler as it was at each of these times, with all that it had learned by then.

        The same core is shown the same events.
        """
        scheduler, found, place = make_scheduler(self.config), dict[float, AnyScheduler](), 0
        for time in sorted(times):
            while place < len(self.entries) and self.entries[place].now < time:
                scheduler.handle(self.entries[place].event, self.entries[place].now)
                place += 1
            found[time] = deepcopy(scheduler)
        return found

    def counts(self, sent: Sequence[Sent]) -> Counts:
        """Return what the engine did while these requests were under way."""
        begun, ended = sent[0].sent, max(one.ended for one in sent)
        launches = _between(self.launches, begun, ended)
        loads = len(_between(self.loads, begun, ended))
        return Counts(len(launches), sum([launch.rows for _, launch in launches]), loads)

    def _end_of_run(self, time: float) -> float | None:
        """Return when the run ended that was under way at a time, None if none was."""
        place = bisect_right(self.launches, time, key=itemgetter(0)) - 1
        if place < 0:
            return None
        begun, launch = self.launches[place]
        return begun + launch.seconds if time < begun + launch.seconds else None

    def beside(self, sent: Sequence[Sent]) -> list[tuple[Sent, Heard]]:
        """Return requests as clients and scheduler saw them: messages arrive in the order of sending."""
        first = bisect_left(self.heard, sent[0].sent, key=lambda one: one.at)
        return list(zip(sent, self.heard[first : first + len(sent)], strict=True))


def _between(every: Sequence[Timed[T]], begun: float, ended: float) -> Sequence[Timed[T]]:
    """Return what began from one time on and before another."""
    return every[bisect_left(every, begun, key=itemgetter(0)) : bisect_left(every, ended, key=itemgetter(0))]


class _Reader:
    """Follows a log."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._footprints = {served.spec.name: served.footprint for served in config.models}
        self._costs = {served.spec.name: served.costs for served in config.models}
        self.launches: list[Timed[Launch]] = []
        self.loads: list[Timed[Loading]] = []
        self.heard: dict[int, float] = {}
        self._inputs: dict[int, int] = {}  # steps, where they are told
        self.answered: dict[int, tuple[float, int]] = {}
        self._running: dict[int, tuple[float, Run, bool]] = {}  # by worker, and whether it is fresh
        self._rests = Rests()
        self._loading: dict[str, float] = {}  # since when

    def take(self, entry: Entry) -> None:
        """Take in the next entry."""
        match entry.event:
            case Arrived(requests=requests, inputs=inputs):
                self.heard |= dict.fromkeys(requests, entry.now)
                self._inputs |= zip(requests, inputs, strict=False)
            case StageDone(worker=worker):
                begun, run, fresh = self._running.pop(worker)
                self._rests.ends(worker, entry.now)
                self.launches.append((begun, self._launch(run, entry.now - begun, fresh)))
            case Loaded(model=model, pieces=pieces):
                begun = self._loading.pop(model)
                size = sum([self._footprints[model].sizes[piece] for piece in pieces])
                self.loads.append((begun, Loading(size, entry.now - begun)))
        place = 0
        for action in entry.actions:
            if isinstance(action, Run):
                fresh = self._rests.begins(action.worker, (action.model, action.stage), entry.now)
                self._running[action.worker] = entry.now, action, fresh
            elif isinstance(action, Load):
                self._loading[action.model] = entry.now
            elif isinstance(action, Reply) and action.outcome is Outcome.ANSWERED:
                self.answered[action.request] = entry.now, place
                place += 1

    def _launch(self, run: Run, seconds: float, fresh: bool) -> Launch:
        rows, inputs = len(run.requests), max([self._inputs.get(one, 1) for one in run.requests])
        costs = self._costs[run.model]
        longer = costs.longer(run.stage, rows, inputs)
        profiled = costs.step(run.stage, rows, inputs) / longer
        return Launch(run.model, run.stage, rows, seconds, profiled, fresh, longer)
