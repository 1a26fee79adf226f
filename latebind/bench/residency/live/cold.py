"""The first answer of a model that others have pushed out of memory, whole or in part: how long it takes.

Everything goes the public way: other models are asked for until so much of it has gone, as the engine itself tells.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle

from latebind.bench.residency.live.asked import Asked, asked
from latebind.bench.residency.live.sides import LATE, LRU, SIDES, Setting
from latebind.bench.residency.live.trace import loads
from latebind.bench.residency.live.zoo import Zoo
from latebind.bench.spread import Progress

ROOM = 1.02  # of the largest model's bytes: what all may take together
ASKED = 200  # requests for others at most until enough of a model has gone


class Start(StrEnum):
    """How a model starts."""

    WHOLE = "all of it loaded, then run"
    COLD = "run while it loads"
    PARTIAL = "part of it there, run while the rest loads"
    WARM = "all of it there"


@dataclass(frozen=True, slots=True)
class First:
    """The first answer of a model: the share of it that was there, the seconds, bytes read and those from the cache."""

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
    for at, (side, starts) in enumerate(
        ((LRU, ((Start.WHOLE, 0.0),)), (LATE, ((Start.COLD, 0.0), (Start.PARTIAL, resident))))
    ):
        async with asked(zoo, SIDES[side], budget=budget, setting=setting, seed=seed) as here:
            for number in range(rounds):
                progress(side, (at + number / rounds) / 2)
                for name in names:
                    for start, share in starts:
                        found += await _first(here, name, start, share)
    return found


async def _first(here: Asked, name: str, start: Start, share: float) -> list[First]:
    """Push a model out until at most `share` of it is there, ask for it, and then once more."""
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
    """Ask for other models in turn until at most `share` of this one is there; returns what is."""
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
