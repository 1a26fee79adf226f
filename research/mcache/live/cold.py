"""Measures the first answer of a model that others have pushed out of memory, whole or in part.

Everything uses the public protocol: other models are asked for until enough of it is evicted, as the engine reports.
If a part is to stay, only so many others are asked for that they leave that part in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle

from latebind.bench.rounds import Progress
from research.mcache.live.asked import Asked, asked
from research.mcache.live.sides import LATE, LRU, SIDES, Setting
from research.mcache.live.trace import loads
from research.mcache.live.zoo import Weighed, Zoo

ROOM = 1.05  # of the largest model's bytes: what all may take together at least
STEPS = 3
ASKED = 200  # requests for others at most until enough of a model has gone


class Start(StrEnum):
    """How a model starts."""

    WHOLE = "all of it loaded, then run"
    COLD = "run while it loads"
    PARTIAL = "part of it there, run while the rest loads"
    WARM = "all of it there"


@dataclass(frozen=True, slots=True)
class First:
    """The first answer of a model: its share in memory before, seconds, bytes read and those from the page cache."""

    model: str
    start: Start
    there: float
    seconds: float
    read: int
    cached: int


async def run(
    zoo: Zoo,
    *,
    models: int,
    resident: float,
    rounds: int,
    setting: Setting,
    seed: int = 0,
    progress: Progress = lambda text, share: None,
) -> list[First]:
    """Start each of so many models, the largest, in every way; of a `PARTIAL` one a share `resident` is there."""
    names = zoo.largest_first[:models]
    budget = round(ROOM * zoo.models[names[0]].size)
    found: list[First] = []
    for at, (side, start) in enumerate(((LRU, Start.WHOLE), (LATE, Start.COLD))):
        progress(start, at / STEPS)
        async with asked(zoo, SIDES[side], budget=budget, setting=setting, seed=seed) as here:
            for name in names * rounds:
                found += await _first(here, name, start, 0.0)
    progress(Start.PARTIAL, 2 / STEPS)
    for name in names:
        beside = _beside(zoo, name, resident)
        budget = round(resident * zoo.models[name].size) + beside.size
        few = beside.having(name, zoo.models[name])
        async with asked(few, SIDES[LATE], budget=budget, setting=setting, seed=seed) as here:
            await here.once(name)
            for _ in range(rounds):
                found += await _first(here, name, Start.PARTIAL, resident)
    return found


def _beside(zoo: Zoo, name: str, resident: float) -> Zoo:
    """Return the least models, the largest first, that leave no more than a share `resident` of one its place."""
    models: dict[str, Weighed] = {}
    for other in zoo.largest_first:
        if other != name and sum(one.size for one in models.values()) < (ROOM - resident) * zoo.models[name].size:
            models[other] = zoo.models[other]
    return Zoo(zoo.folder, models)


async def _first(here: Asked, name: str, start: Start, share: float) -> list[First]:
    """Evict a model until at most `share` of it is in memory, ask for it, and then once more."""
    there = await _pushed_out(here, name, share, here.zoo.largest_first)
    if there > share:
        return []
    before = await loads(here)
    call = await here.once(name)
    after = await loads(here)
    read, cached = after.read - before.read, after.cached - before.cached
    firsts = [First(name, start, there, call.seconds, read, cached)]
    there = await _share_there(here, name)
    if there == 1.0:
        firsts.append(First(name, Start.WARM, there, (await here.once(name)).seconds, 0, 0))
    return firsts


async def _pushed_out(here: Asked, name: str, share: float, names: Sequence[str]) -> float:
    """Ask for other models in turn until at most `share` of this one is in memory; return the share that is."""
    others = cycle([other for other in names if other != name])
    for _ in range(ASKED):
        there = await _share_there(here, name)
        if there <= share:
            break
        await here.once(next(others))
    return there


async def _share_there(here: Asked, name: str) -> float:
    figures = (await here.memory())[name]
    return figures["resident_bytes"] / figures["bytes"]
