"""Arrivals for the simulator: when requests come, how long they may take and where they leave the network."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from latebind.domain.config import ServedModel


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come: at `time` (seconds), due `time + allowed`, leaving at stage `leaves_at`."""

    time: float
    model: str
    allowed: float
    leaves_at: int


def poisson(model: ServedModel, *, rate: float, requests: int, allowed: float, random: Random) -> Iterator[Arrival]:
    """Yield `requests` arrivals at `rate` a second with exponential gaps; exits are drawn from the hit rates."""
    time = 0.0
    for _ in range(requests):
        time += random.expovariate(rate)
        yield Arrival(time, model.spec.name, allowed, leaving_stage(model, random))


def leaving_stage(model: ServedModel, random: Random) -> int:
    """Draw the stage at which a request leaves: by the share of all requests that hit there, else the last."""
    left = random.random()
    for stage, share in sorted(model.costs.hit_rates.items()):
        if left < share:
            return stage
        left -= share
    return model.spec.stages - 1
