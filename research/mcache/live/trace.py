"""Plays requests of an hour of a trace, sped up, to one side after another: the same for each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from latebind.bench.rounds import Progress, in_rounds
from latebind.domain.errors import ConfigError
from latebind.engine.cores import at_once
from latebind.simulation.traces import HOUR, REQUESTS, Pairing, Request, Service, hour_of, invocations, paired
from research.mcache.live.asked import Asked, Call, asked
from research.mcache.live.sides import SIDES, Setting
from research.mcache.live.watched import Growth
from research.mcache.live.zoo import Zoo
from research.mcache.scenes import halves

MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Plan:
    """Each round plays another piece of another hour: `warm_up` and `seconds`, at `speed` times the trace's.

    Models may take `share` of what all take. Only requests that come after the warm-up count.
    """

    services: tuple[Service, ...]
    share: float = 0.4
    speed: float = 10.0
    seconds: float = 20.0
    warm_up: float = 5.0
    rounds: int = 1
    pairing: Pairing = Pairing.RANDOM
    seed: int = 0
    sides: tuple[str, ...] = tuple(SIDES)


@dataclass(frozen=True, slots=True)
class Block:
    """The outcome of one round on one side. `calls` are those that count, and `lost` how many of them had no answer.

    Weights may take `budget` bytes, `beside` those of slots and batches. What was loaded, warm-up included: so many
    times pieces or models, bytes that were read and those of them that lay in the page cache.
    """

    calls: tuple[Call, ...]
    growth: Growth
    budget: int
    beside: int
    loads: int
    read: int
    cached: int
    lost: int


Blocks = dict[str, list[Block]]


def requests_of(plan: Plan, models: Sequence[str], number: int) -> list[Request]:
    """Return the requests of a round; `models` come in the order of decreasing loading time."""
    half, seed = number % 2, plan.seed + number // 2
    random = Random(f"{half} {seed}")
    hour = hour_of(halves(plan.services)[half], Random(f"hour {half} {seed}"), REQUESTS)
    every = invocations(hour, paired(hour, models, plan.pairing, random), random)
    span = plan.speed * (plan.warm_up + plan.seconds)
    if span > MINUTE * HOUR:
        raise ConfigError(
            f"{span:.0f} s of the trace are more than the hour that is drawn: give less --speed or --seconds"
        )
    first = random.uniform(0.0, MINUTE * HOUR - span)
    return [
        Request((request.time - first) / plan.speed, request.model)
        for request in every
        if first <= request.time < first + span
    ]


async def run(zoo: Zoo, plan: Plan, setting: Setting, progress: Progress = lambda text, share: None) -> Blocks:
    """Play all rounds; the order of sides is turned round with each. Raises `ConfigError`."""
    found: Blocks = {name: [] for name in plan.sides}
    for number in in_rounds(plan.rounds):
        requests = requests_of(plan, zoo.slowest_first, number)
        for at, name in enumerate(_turned(plan.sides, number)):
            progress(f"{name}, {len(requests)} requests", (number + at / len(plan.sides)) / plan.rounds)
            budget = round(plan.share * zoo.size)
            async with asked(zoo, SIDES[name], budget=budget, setting=setting, seed=plan.seed) as here:
                found[name].append(await _block(here, requests, plan.warm_up, setting))
    return found


async def _block(here: Asked, requests: Sequence[Request], warm_up: float, setting: Setting) -> Block:
    with here.watch().looking() as watch:
        calls = await here.play(requests)
    return made(here, [call for call in calls if call.sent >= warm_up], watch.growth, await loads(here), setting)


@dataclass(frozen=True, slots=True)
class Loads:
    """Loads of pieces or models, the bytes that they read, and those of them that lay in the page cache."""

    times: int
    read: int
    cached: int


async def loads(here: Asked) -> Loads:
    """Return what an engine has loaded since its start."""
    every = list((await here.memory()).values())
    return Loads(
        sum(one["loads"] for one in every),
        sum(one["read_bytes"] for one in every),
        sum(one["cached_bytes"] for one in every),
    )


def made(here: Asked, calls: Sequence[Call], growth: Growth, loaded: Loads, setting: Setting) -> Block:
    """Return a block of these calls."""
    lost = sum(call.ended == float("inf") for call in calls)
    beside = here.zoo.beside_weights(list(here.zoo.models), setting.slots, at_once(setting.engine))
    return Block(tuple(calls), growth, here.budget, beside, loaded.times, loaded.read, loaded.cached, lost)


def popularity(requests: Sequence[Request]) -> Mapping[str, int]:
    """Return how often each model is asked for."""
    return {name: sum(one.model == name for one in requests) for name in sorted({one.model for one in requests})}


def _turned(sides: Sequence[str], number: int) -> Sequence[str]:
    return sides if number % 2 == 0 else sides[::-1]
