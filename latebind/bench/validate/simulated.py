"""The block of a visit on a virtual clock: the same requests at the same times, on what was measured beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from math import inf
from random import Random
from statistics import median

import numpy as np

from latebind.bench.live.played import Seconds
from latebind.bench.validate.client import Sent
from latebind.bench.validate.live import Played, Visit
from latebind.domain.actions import Outcome
from latebind.domain.config import SchedulerConfig
from latebind.simulation.driver import Simulator
from latebind.simulation.measured import Hops, Launch, Measured, Seen, typical
from latebind.simulation.workloads import Arrival


def simulated(played: Played, random: Random, *, times: int) -> list[list[Seconds]]:
    """Return for each visit the seconds of its requests, inf for those without answer, in so many runs.

    Launches are those of all calibrations, each at the pace of all; the pace of a run is that of the calibrations
    before and after it. What ran in blocks is not looked at.
    """
    beside = [played.log.seen([visit.before, visit.after]) for visit in played.visits]
    rule = typical(launch for seen in beside for launch in seen.launches)
    paces = [median(one.seconds / rule[one.model, one.stage].at(one.rows) for one in seen.launches) for seen in beside]
    seen = Seen(
        tuple([_at_pace(one, pace) for some, pace in zip(beside, paces, strict=True) for one in some.launches]),
        _joined([some.hops for some in beside]),
    )
    return [
        [replay(played.log.config, visit, seen, pace, Random(random.random())) for _ in range(times)]
        for visit, pace in zip(played.visits, paces, strict=True)
    ]


def replay(config: SchedulerConfig, visit: Visit, seen: Seen, pace: float, random: Random) -> Seconds:
    """Return the seconds of each request of a block. What came before it comes here too, and teaches the scheduler."""
    simulator = Simulator(config, hardware=partial(Measured, seen=seen, pace=pace, random=random))
    begun = visit.before[0].sent
    records = simulator.run(arrivals([*visit.before, *visit.block], config, begun))
    simulator.scheduler.check()
    records.sort(key=lambda record: record.request)
    counted = records[len(visit.before) :]
    return np.array([one.latency if one.outcome is Outcome.ANSWERED else inf for one in counted])


def arrivals(sent: Iterable[Sent], config: SchedulerConfig, begun: float) -> list[Arrival]:
    """Return what clients sent as a workload, in seconds since then; each leaves where it did live."""
    last = {served.spec.name: served.spec.stages - 1 for served in config.models}
    return [
        Arrival(one.sent - begun, one.model, one.allowed, one.left_at if one.left_at >= 0 else last[one.model])
        for one in sent
    ]


def _at_pace(launch: Launch, pace: float) -> Launch:
    return replace(launch, seconds=launch.seconds / pace)


def _joined(some: Sequence[Hops]) -> Hops:
    return Hops(
        tuple([seconds for hops in some for seconds in hops.idle]),
        tuple([seconds for hops in some for seconds in hops.busy]),
        tuple([seconds for hops in some for seconds in hops.back]),
        median([hops.each for hops in some]),
    )
