"""Depth by the load, live: engines on one core that take turns over the same arrivals, with unseen rows."""

import asyncio
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np

from latebind.bench.server import pinned
from latebind.bench.subject import Setting
from latebind.domain.config import PolicyConfig
from latebind.repository.listing import find_models
from research.contest import Session, session
from research.gati.load import (
    BURSTS,
    COMPACTED,
    FIXED,
    OURS,
    PERIOD,
    POLICIES,
    SLACK_FIT,
    TO_THE_END,
    Case,
    Cells,
    Half,
    Played,
    Trial,
    drawn,
)
from research.sides import SERIAL, Side, graph

CAPACITY_ROUNDS, CAPACITY_SECONDS = 3, 1.0
CAPACITY_SHARE = 0.5  # of the capacity, at which all sides are warmed up for some seconds
WARM_SECONDS = 2.0


def sides(floor: float, below: float) -> dict[str, Side]:
    """Return all sides by name; one that runs the whole network gives the right answers and the pace."""
    found = [Side(SERIAL, graph(1)), Side(FIXED, PolicyConfig(POLICIES[FIXED]), exits=True)]
    for name in (SLACK_FIT, TO_THE_END, COMPACTED, OURS):
        found.append(Side(name, PolicyConfig(POLICIES[name]), exits=True, floor=floor, below=below))
    return {side.label: side for side in found}


def live(trial: Trial, cells: Cells, sides: Mapping[str, Side], seed: int, *, seconds: float, setting: Setting) -> Half:
    """Return what became of the requests of each side on one half, with engines that have its thresholds."""
    with trial.case(seed) as case, pinned(setting.frontend_cores):
        return asyncio.run(_held(trial, case, cells, sides, seconds, Random(f"{seed} live"), setting))


async def _held(
    trial: Trial,
    case: Case,
    cells: Cells,
    sides: Mapping[str, Side],
    seconds: float,
    random: Random,
    setting: Setting,
) -> Half:
    """Hold the engines of one seed, and return what became of the requests of all cells."""
    (path,) = find_models(case.repository, [trial.subject.model])
    names = [name for name in sides if name != SERIAL]
    half: Half = {}
    async with session(path, sides, trial.subject.take(case.traffic).inputs, setting) as here:
        took = await here.saturated([FIXED], CAPACITY_SECONDS, CAPACITY_ROUNDS, random, lambda text, share: None)
        # The pace that deadlines and loads are told by is that of the engine, not of the profile.
        alone = here.alone
        most, allowed = 1.0 / (alone * float(np.mean(took[FIXED]))), cells.allowed / trial.alone * alone
        warm = times_of(cells.patterns[0], CAPACITY_SHARE * most, WARM_SECONDS, random)
        await here.block(names, warm, random, alone=alone, allowed=allowed)
        for pattern, load in cells.every:
            lasts = max(seconds, PERIOD) if pattern == BURSTS else seconds
            times = times_of(pattern, load * most, lasts, random)
            half[pattern, load] = await played(here, names, times, case, random, alone, allowed)
    return half


def times_of(pattern: str, rate: float, seconds: float, random: Random) -> list[float]:
    """Return the times of arrivals over so many seconds."""
    return [time for time, _ in drawn(pattern, rate, max(1, round(rate * seconds)), 1, random)]


async def played(
    here: Session,
    names: Sequence[str],
    times: Sequence[float],
    case: Case,
    random: Random,
    alone: float,
    allowed: float,
) -> dict[str, Played]:
    """Return what became of requests at these times on each side."""
    found = {}
    for name, one in (await here.block(names, times, random, alone=alone, allowed=allowed)).items():
        answered = np.isfinite(one.seconds)
        assert one.alike is not None, "they are live"
        found[name] = Played(
            np.where(answered, one.promised, np.nan),
            answered & one.alike,
            one.in_time,
            case.traffic[one.rows],
            0,
            one.behind,
        )
    return found
