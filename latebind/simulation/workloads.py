"""Arrivals for the simulator: when requests come, how long they may take and where they leave the network."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from math import cos, tau
from random import Random

from latebind.domain.config import ServedModel


@dataclass(frozen=True, slots=True)
class Step:
    """What becomes of a node of a query: the stage at which it leaves each option, and whether its condition holds."""

    leaves_at: tuple[int, ...]
    holds: bool = True


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request to come: at `time` (seconds), due `time + allowed`, leaving at stage `leaves_at`.

    Its input has `inputs` steps and its answer `outputs`, which a policy that is no oracle does not look at. A call of
    `rows` is as many requests, all alike. Where it is for a query, `steps` are its nodes. Of those who wait for a
    model, `priority` 1 goes first and 0 last.
    """

    time: float
    model: str
    allowed: float
    leaves_at: int
    inputs: int = 1
    outputs: int = 1
    rows: int = 1
    steps: tuple[Step, ...] = ()
    priority: int = 0


Lengths = Sequence[tuple[int, int]]  # of inputs and answers, in steps


def poisson(
    model: ServedModel,
    *,
    rate: float,
    requests: int,
    allowed: float,
    random: Random,
    lengths: Lengths = ((1, 1),),
) -> Iterator[Arrival]:
    """Yield `requests` arrivals at `rate` a second with exponential gaps; exits are drawn from the hit rates.

    Each is as long as one of `lengths`.
    """
    yield from stepped(model, steps=((rate, requests),), allowed=allowed, random=random, lengths=lengths)


def stepped(
    model: ServedModel,
    *,
    steps: Sequence[tuple[float, int]],
    allowed: float,
    random: Random,
    lengths: Lengths = ((1, 1),),
) -> Iterator[Arrival]:
    """Yield arrivals whose rate changes: so many at each rate of `steps`, in turn (Ebird, figures 2 and 8)."""
    time = 0.0
    for rate, requests in steps:
        for _ in range(requests):
            time += random.expovariate(rate)
            inputs, outputs = random.choice(lengths) if len(lengths) > 1 else lengths[0]
            yield Arrival(time, model.spec.name, allowed, leaving_stage(model, random), inputs, outputs)


def diurnal(
    model: ServedModel, *, low: float, high: float, day: float, days: int, allowed: float, random: Random
) -> Iterator[Arrival]:
    """Yield arrivals whose rate goes from `low` to `high` a second and back within each `day` of so many seconds.

    Drawn at the highest rate, then thinned to what the cosine says (Lewis and Shedler 1979).
    """
    time = random.expovariate(high)
    while time < days * day:
        rate = low + (high - low) * 0.5 * (1.0 - cos(tau * time / day))
        if random.random() * high < rate:
            yield Arrival(time, model.spec.name, allowed, leaving_stage(model, random))
        time += random.expovariate(high)


def together(*streams: Iterable[Arrival]) -> Iterator[Arrival]:
    """Yield the arrivals of several streams in the order of time."""
    return merge(*streams, key=lambda arrival: arrival.time)


def leaving_stage(model: ServedModel, random: Random) -> int:
    """Draw the stage at which a request leaves: by the share of all requests that hit there, else the last."""
    left = random.random()
    for stage, share in sorted(model.costs.hit_rates.items()):
        if left < share:
            return stage
        left -= share
    return model.spec.stages - 1
