"""What launches and messages took in an engine's log, and blocks of requests simulated with that.

Of each block the simulator is told when clients sent requests and where these left. A launch takes what one of the same
stage with about as many rows, about as long, took in calibrations around the block, drawn at random, scaled by the
model's costs; a message takes what one took. So slow moments of a machine, which last for many launches, are not
simulated.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from random import Random

import numpy as np

from latebind.domain.actions import Outcome, Reply, Run
from latebind.domain.config import SchedulerConfig
from latebind.domain.eventlog import read_log
from latebind.domain.events import Arrived, StageDone
from latebind.simulation.driver import Simulator
from latebind.simulation.hardware import After, Agenda, Hardware, Work
from latebind.simulation.hardware import Call as Later
from latebind.simulation.workloads import Arrival
from research.live import Call
from research.sides import Figures

OFTEN = 5  # launches; of fewer of one size, one that meets a pause could decide what all take


@dataclass(frozen=True, slots=True)
class Launch:
    """One run of a stage: when it began, and seconds until its end was reported; by its costs it takes `profiled`."""

    begun: float
    stage: tuple[str, int]  # of a model
    rows: int
    seconds: float
    profiled: float


@dataclass(frozen=True, slots=True)
class Seen:
    """Launches by stage and rows, and the seconds of messages to the scheduler and back."""

    launches: Mapping[tuple[str, int], Mapping[int, Sequence[Launch]]]
    there: Sequence[float]
    back: Sequence[float]


@dataclass(frozen=True, slots=True)
class Log:
    """Launches in the order of time, and for each request when it was heard of and answered, inf if it never was."""

    config: SchedulerConfig
    launches: Sequence[Launch]
    heard: Sequence[tuple[float, float]]

    @classmethod
    def read(cls, file: Path) -> "Log":
        """Read what an engine has written that has ended since. Raises `ConfigError`."""
        launches, heard, answered = list[Launch](), dict[int, float](), dict[int, float]()
        inputs, running = dict[int, int](), dict[int, tuple[float, Run]]()
        with file.open("rb") as opened:
            config, entries = read_log(opened)
            costs = {served.spec.name: served.costs for served in config.models}
            for entry in entries:
                match entry.event:
                    case Arrived(requests=requests, inputs=steps):
                        heard |= dict.fromkeys(requests, entry.now)
                        inputs |= zip(requests, steps, strict=False)
                    case StageDone(worker=worker):
                        begun, run = running.pop(worker)
                        longest = max([inputs.get(one, 1) for one in run.requests])
                        rows = len(run.requests)
                        profiled = costs[run.model].step(run.stage, rows, longest)
                        launches.append(Launch(begun, (run.model, run.stage), rows, entry.now - begun, profiled))
                for action in entry.actions:
                    if isinstance(action, Run):
                        running[action.worker] = entry.now, action
                    elif isinstance(action, Reply) and action.outcome is Outcome.ANSWERED:
                        answered[action.request] = entry.now
        launches.sort(key=lambda one: one.begun)
        return cls(config, launches, [(at, answered.get(request, inf)) for request, at in heard.items()])

    def seen(self, stretches: Sequence[Sequence[Call]]) -> Seen:
        """Return what was seen while these requests were under way and no others."""
        launches: dict[tuple[str, int], dict[int, list[Launch]]] = defaultdict(lambda: defaultdict(list))
        there, back = [0.0], [0.0]
        for calls in stretches:
            begun, ended = calls[0].sent, max(one.ended for one in calls)
            for one in self.launches:
                if begun <= one.begun < ended:
                    launches[one.stage][one.rows].append(one)
            first = bisect_left(self.heard, (begun, 0.0))
            for call, (heard, answered) in zip(calls, self.heard[first:], strict=False):  # heard of as they are sent
                there.append(heard - call.sent)
                if answered < inf:
                    back.append(call.ended - answered)
        return Seen(
            {stage: _often(by_rows) for stage, by_rows in launches.items()}, there[1:] or there, back[1:] or back
        )


def _often(by_rows: Mapping[int, list[Launch]]) -> dict[int, list[Launch]]:
    """Return launches by rows; those of sizes that came seldom are put to the next smaller one."""
    found, few = dict[int, list[Launch]](), list[Launch]()
    for rows in sorted(by_rows, reverse=True):
        few = few + by_rows[rows]
        if len(few) >= OFTEN or rows == min(by_rows):
            found[rows], few = few, []
    return found


def _about_as_long(launches: Sequence[Launch], profiled: float) -> Sequence[Launch]:
    """Return those that take about as long by their costs: what a launch takes besides does not grow with its rows."""
    apart = sorted({abs(one.profiled - profiled) for one in launches})[:OFTEN]
    return [one for one in launches if abs(one.profiled - profiled) <= apart[-1]]


class Measured(Hardware):
    """Workers and messages that take what was seen. Messages in one direction do not overtake each other."""

    def __init__(self, agenda: Agenda, *, seen: Seen, random: Random) -> None:
        super().__init__(agenda)
        self._seen = seen
        self._random = random
        self._heard = self._answered = 0.0  # when the last message in each direction arrived

    def bring(self, model: str, rows: int, now: float, ready: Later) -> None:
        """A request takes what a message to the scheduler took."""
        self._heard = max(self._heard, now + self._random.choice(self._seen.there))
        self._agenda.at(self._heard, ready)

    def run(self, work: Work, now: float, after: After) -> None:
        """A run takes what one of about as many rows took; what its costs say where none of its stage was seen."""
        seconds, by_rows = work.seconds, self._seen.launches.get((work.model, work.stage))
        if by_rows:
            nearest = min(by_rows, key=lambda rows: (abs(rows - work.rows), rows))
            one = self._random.choice(_about_as_long(by_rows[nearest], work.seconds))
            seconds = one.seconds * (work.seconds / one.profiled if one.profiled else 1.0)
        for later, call in after:
            self._agenda.at(now + seconds + later, call)

    def send(self, model: str, now: float, sent: Later) -> None:
        """An answer takes what a message back took."""
        self._answered = max(self._answered, now + self._random.choice(self._seen.back))
        self._agenda.at(self._answered, sent)


def simulated(log: Log, stretches: Sequence[Sequence[Call]], seed: int) -> list[Figures]:
    """Return the seconds of requests of each stretch, inf for those without answer; every other one calibrates.

    Calibrations are played too: the scheduler learns from them.
    """
    seen, random = log.seen(stretches[::2]), Random(seed)
    last = {served.spec.name: served.spec.stages - 1 for served in log.config.models}
    simulator = Simulator(log.config, hardware=partial(Measured, seen=seen, random=random))
    records = simulator.run(
        Arrival(
            one.sent,
            one.model,
            one.due + one.allowed - one.sent,
            one.left_at if one.left_at >= 0 else last[one.model],
            one.inputs,
            one.outputs,
            sizes=one.sizes,
        )
        for calls in stretches
        for one in calls
    )
    simulator.scheduler.check()
    seconds = {one.arrived: one.latency if one.outcome is Outcome.ANSWERED else inf for one in records}
    return [np.array([seconds[one.sent] for one in calls]) for calls in stretches]
