"""Simulates the blocks of a visit: the same requests at the same times, with costs measured around them."""

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from math import inf
from random import Random
from statistics import median

import numpy as np

from latebind.domain.actions import Outcome
from latebind.domain.config import SchedulerConfig
from latebind.queries.scheduler import AnyScheduler
from latebind.simulation.driver import Simulator
from latebind.simulation.workloads import Arrival
from research.hardware.measured import Kind, Measured, Pace, Seen, Usual, at_pace, joined, typical
from research.live import Seconds
from research.requests import Sent, Visit
from research.validate.logged import Counts, Logged, counted


@dataclass(frozen=True, slots=True)
class Played:
    """All visits of one engine, and its log."""

    model: str
    policy: str
    visits: Sequence[Visit]
    log: Logged


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a visit: the seconds of requests by block, inf for those without answer, and what it did in all."""

    blocks: list[Seconds]
    counts: Counts


def simulated(played: Played, seed: int, *, times: int) -> list[list[Run]]:
    """Return so many runs of each visit.

    Of launches and messages a visit is told what its own calibrations saw and nothing else. What ran in its blocks is
    not looked at. The scheduler has learned what the live one had when the visit began.
    """
    learned = played.log.schedulers([visit.sent[0].sent for visit in played.visits])
    return [
        _runs(played, visit, learned[visit.sent[0].sent], [Random(f"{seed} {number} {time}") for time in range(times)])
        for number, visit in enumerate(played.visits)
    ]


def _runs(played: Played, visit: Visit, scheduler: AnyScheduler, randoms: Sequence[Random]) -> list[Run]:
    """Play a visit with each generator; launches and loads are brought to one pace and take that of the moment."""
    beside = [played.log.seen(sent) for sent in visit.calibrations]
    rule = typical(launch for seen in beside for _, launch in seen.launches)
    usual = median([one.seconds / one.size for seen in beside for _, one in seen.loads] or [1.0])
    paces = [pace_of(seen, rule, usual) for seen in beside]
    seen = joined([at_pace(one, pace) for one, pace in zip(beside, paces, strict=True)])
    middles = tuple([0.5 * (sent[0].sent + sent[-1].sent) for sent in visit.calibrations])
    pace = Paces(middles, tuple(paces))
    return [replay(played.log.config, visit, seen, pace, random, deepcopy(scheduler)) for random in randoms]


def pace_of(seen: Seen, rule: Mapping[Kind, Usual], usual: float) -> Pace:
    """Return how many times as long as by a rule launches took, and as `usual` for a byte loads; 1 without any."""
    runs = [one.typical / rule[one.kind].at(one.rows, one.profiled) for _, one in seen.launches]
    loads = [one.seconds / one.size / usual for _, one in seen.loads]
    return Pace(median(runs or [1.0]), median(loads or [1.0]))


def replay(
    config: SchedulerConfig,
    visit: Visit,
    seen: Seen,
    pace: "Paces",
    random: Random,
    scheduler: AnyScheduler,
) -> Run:
    """Play a visit once, by the clock of the machine. Calibrations are played too: the scheduler learns from them."""
    hardware = partial(Measured, seen=seen, pace=pace.at, random=random)
    simulator = Simulator(config, hardware=hardware, scheduler=scheduler)
    records = simulator.run(arrivals(visit.sent, config))
    simulator.scheduler.check()
    seconds = {one.arrived: one.latency if one.outcome is Outcome.ANSWERED else inf for one in records}
    blocks = [np.array([seconds[one.sent] for one in block]) for block in visit.blocks]
    return Run(blocks, counted(simulator.metrics))


@dataclass(frozen=True, slots=True)
class Paces:
    """The pace of a machine by `times`, at which it was `measured`; it is taken to change evenly in between."""

    times: tuple[float, ...]
    measured: tuple[Pace, ...]

    def at(self, time: float) -> Pace:
        """Return the pace at a time."""
        runs, loads = [one.runs for one in self.measured], [one.loads for one in self.measured]
        return Pace(float(np.interp(time, self.times, runs)), float(np.interp(time, self.times, loads)))


def arrivals(sent: Iterable[Sent], config: SchedulerConfig) -> list[Arrival]:
    """Return what clients sent as a workload; each leaves where it did live, as long."""
    last = {served.spec.name: served.spec.stages - 1 for served in config.models}
    return [
        Arrival(
            one.sent,
            one.model,
            one.allowed,
            one.left_at if one.left_at >= 0 else last[one.model],
            one.inputs,
            one.outputs,
        )
        for one in sent
    ]
