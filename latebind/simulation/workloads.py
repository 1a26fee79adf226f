"""Generates requests for the simulator: arrival times, deadlines, and the stage after which each leaves the network."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from latebind.domain.config import ServedModel


@dataclass(frozen=True, slots=True)
class Step:
    """What a request does at a node of a query: the stage at which it leaves each model; whether the condition holds.

    For a model with an operating curve, `levels` have the stage at which it leaves at each level.
    """

    leaves_at: tuple[int, ...]
    holds: bool = True
    levels: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that arrives at `time` (seconds), is due at `time + allowed` and leaves the network after `leaves_at`.

    `leaves_at` is a stage; at a level of an operating curve it leaves at that of `levels`. `inputs` and `outputs` are
    the steps of its input and its answer; only oracle policies may look at `outputs`. For `sizes` see `Arrived`. A call
    with several `rows` counts as that many identical requests. For a query, `steps` has one entry for each node. Among
    requests that wait for the same model, those of `priority` 1 go first and those of 0 last.
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
    sizes: int = 0
    levels: tuple[int, ...] = ()


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
    """Yield Poisson arrivals: `requests` requests at `rate` a second, with exits drawn from the model's hit rates.

    The lengths of each request are drawn from `lengths`.
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
    """Yield Poisson arrivals at changing rates: each pair in `steps` is a rate and how many requests arrive at it.

    Ebird uses such loads in its figures 2 and 8.
    """
    time = 0.0
    for rate, requests in steps:
        for _ in range(requests):
            time += random.expovariate(rate)
            inputs, outputs = random.choice(lengths) if len(lengths) > 1 else lengths[0]
            drawn, costs = random.random(), model.costs
            leaves_at = leaving_stage(model, costs.hit_rates, drawn)
            levels = tuple([leaving_stage(model, level.hit_rates, drawn) for level in costs.levels])
            yield Arrival(time, model.spec.name, allowed, leaves_at, inputs, outputs, levels=levels)


def leaving_stage(model: ServedModel, hit_rates: Mapping[int, float], drawn: float) -> int:
    """Return the stage after which a request leaves, for a number that was drawn between 0 and 1.

    The hit rate of a stage is the share of all requests that leave there. The others leave after the last stage.
    """
    for stage, share in sorted(hit_rates.items()):
        if drawn < share:
            return stage
        drawn -= share
    return model.spec.stages - 1
