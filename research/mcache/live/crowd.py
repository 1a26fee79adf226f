"""Clients that send their next request as soon as they have an answer: throughput, and the longest wait."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from random import Random

from latebind.bench.rounds import Progress, in_rounds
from latebind.simulation.traces import HOUR
from research.mcache.live.asked import Call, asked
from research.mcache.live.sides import SIDES, Setting
from research.mcache.live.trace import Block, Plan, loads, made, popularity, requests_of
from research.mcache.live.zoo import Zoo

CLIENTS = 32  # as mCache's

Crowds = dict[float, dict[str, list[Block]]]


@dataclass(frozen=True, slots=True)
class Popular:
    """Models and how often each is asked for."""

    models: tuple[str, ...]
    weights: tuple[int, ...]

    def drawn(self, seed: str) -> Iterator[str]:
        """Yield models without end."""
        random = Random(seed)
        while True:
            yield from random.choices(self.models, self.weights)


def popular(plan: Plan, zoo: Zoo, number: int) -> Popular:
    """Return how often models are asked for in the hour of a round."""
    hour = replace(plan, speed=1.0, seconds=60.0 * HOUR, warm_up=0.0)
    counts = popularity(requests_of(hour, zoo.slowest_first, number))
    return Popular(tuple(counts), tuple(counts.values()))


async def run(
    zoo: Zoo,
    plan: Plan,
    shares: tuple[float, ...],
    setting: Setting,
    clients: int = CLIENTS,
    progress: Progress = lambda text, share: None,
) -> Crowds:
    """Play to each side in each share of the memory; each client asks for the same models in all of them."""
    found: Crowds = {share: {name: [] for name in plan.sides} for share in shares}
    steps = [(share, name) for share in shares for name in plan.sides]
    for number in in_rounds(plan.rounds):
        for at, (share, name) in enumerate(steps):
            progress(f"{name}, {share:.0%}", (number + at / len(steps)) / plan.rounds)
            models = popular(plan, zoo, number)
            budget = round(share * zoo.size)
            async with asked(zoo, SIDES[name], budget=budget, setting=setting, seed=plan.seed) as here:
                drawn = [models.drawn(f"{plan.seed} {number} {client}") for client in range(clients)]
                with here.watch().looking() as watch:
                    calls = await here.crowd(drawn, plan.warm_up + plan.seconds)
                found[share][name].append(made(here, calls, watch.growth, await loads(here), setting))
    return found


def throughput(block: Block, plan: Plan) -> float:
    """Return the answers a second after the warm-up."""
    return len(_counted(block, plan)) / plan.seconds


def longest_wait(block: Block) -> float:
    """Return the longest wait of any request until its batch began, in seconds."""
    return max((call.waited for call in block.calls if call.ended < inf), default=inf)


def _counted(block: Block, plan: Plan) -> list[Call]:
    end = plan.warm_up + plan.seconds
    return [call for call in block.calls if plan.warm_up <= call.ended < end]
